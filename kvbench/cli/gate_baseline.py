"""`kvbench gate baseline`: verified runs kept in a folder, and what `kvbench gate compare --baseline` reads of them."""

import getpass
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.gate.baselines import Baseline
    from kvbench.results import Run

Store = Annotated[Path, typer.Option("--store", metavar="DIR", help="The folder of baselines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

baseline_app = typer.Typer(name="baseline", help="Verified runs kept to compare with later.", no_args_is_help=True)


def register(gate: typer.Typer) -> None:
    """Add `baseline` to the sub-app `gate`."""
    gate.add_typer(baseline_app)


def against_baseline(store: Path, runs: "Sequence[Run]") -> tuple["Sequence[Run]", "Sequence[Run]", list[str]]:
    """Return the rounds of the newest baseline of the runs' machine, as many of `runs`, and what to know of them.

    Raises UsageError and MismatchError.
    """
    from kvbench.gate.baselines import newest_for
    from kvbench.gate.pairing import rounds_of

    if not runs:
        raise UsageError(f"--baseline {store}: name the runs to compare with it")
    entry = newest_for(store, runs[0].info)
    base = [part for run in entry.runs() for part in rounds_of(run)]
    cand = [part for run in runs for part in rounds_of(run)]
    count = min(len(base), len(cand))
    notes = [
        f"baseline {entry.key}, commit {entry.origin.commit or 'unknown'}, by {entry.origin.who}",
        "not interleaved: what changed on the machine since then counts as a difference; --base and --cand exclude it",
    ]
    if len(base) != len(cand):
        notes.append(f"{len(base)} rounds of the baseline and {len(cand)} of the runs: the first {count} are compared")
    return base[:count], cand[:count], notes


@baseline_app.command("add")
def baseline_add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    store: Store,
    name: Annotated[str | None, typer.Option(help="Part of its key.  [default: the sweep's name]")] = None,
    who: Annotated[str | None, typer.Option(help="Who vouches for it.  [default: git's user, or the login]")] = None,
    commit: Annotated[
        str | None, typer.Option(help="What was measured.  [default: HEAD of the folder at hand]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep verified runs as one baseline: complete ones, without failed cells."""
    from kvbench.gate.baselines import add
    from kvbench.results import load_run

    loaded = [load_run(path) for path in runs]
    entry = add(
        store,
        loaded,
        name or str(loaded[0].info.spec.get("name", "")),
        who or _git("config", "user.name") or getpass.getuser(),
        commit or _git("rev-parse", "HEAD"),
    )
    typer.echo(json.dumps(_plain(entry)) if as_json else f"baseline {entry.key}")


@baseline_app.command("list")
def baseline_list(store: Store, as_json: AsJson = False) -> None:
    """List the baselines of a store, the newest first."""
    from kvbench.gate.baselines import baselines

    found = [_plain(entry) for entry in baselines(store)]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for row in found:
        typer.echo(f"{row['key']}  {row['runs']} runs  {str(row['commit'])[:12] or 'no commit'}  {row['who']}")


@baseline_app.command("show")
def baseline_show(
    key: Annotated[str, typer.Argument(help="A baseline's key, or how it begins.")],
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Show one baseline: who added it, when, of which commit, its machine and its run directories."""
    from kvbench.gate.baselines import find
    from kvbench.text import printable

    entry = find(store, key)
    identity = entry.runs()[0].info.identity
    if as_json:
        typer.echo(json.dumps({**_plain(entry), "path": str(entry.path), "identity": identity}, indent=2))
        return
    for name, value in {**_plain(entry), "path": str(entry.path)}.items():
        typer.echo(f"{name:<22}{value}")
    for name, scalar in identity.items():
        typer.echo(f"  {printable(name):<20}{'unknown' if scalar is None else printable(scalar)}")


def _plain(entry: "Baseline") -> dict[str, str | int]:
    origin = entry.origin
    return {"key": entry.key, "when": origin.when, "who": origin.who, "commit": origin.commit, "runs": origin.runs}


def _git(*arguments: str) -> str:
    """Return what git says in the folder at hand; "" without git or outside of a repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run([git, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
