"""Workflows and the composite action: what they use is pinned, and the page about the gate calls what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "perf-gate" / "action.yml"
USES = re.compile(r"^ *(?:- )?uses: (\S+)(.*)$", re.MULTILINE)


def inputs(text: str, key: str, indent: int) -> set[str]:
    """Return the names below `key`, which is indented by so many blanks."""
    _, _, below = text.partition(f"\n{' ' * indent}{key}:\n")
    lines = below.splitlines()
    end = next((index for index, line in enumerate(lines) if line and not line.startswith(" " * (indent + 2))), None)
    return set(re.findall(rf"^ {{{indent + 2}}}([a-z]+):", "\n".join(lines[:end]), re.MULTILINE))


def test_actions_of_others_are_pinned_by_commit_with_their_version() -> None:
    files = sorted((ROOT / ".github").glob("*/**/*.yml"))
    used = [match.groups() for file in files for match in USES.finditer(file.read_text())]
    others = [(name, version) for name, version in used if not name.startswith(("./", "docker://"))]
    assert len(others) > 10
    for name, version in others:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", version), name
    assert len({*others}) == len({name.partition("@")[0] for name, _ in others})


def test_what_workflows_run_beside_actions_is_pinned_by_hash() -> None:
    files = {file.name: file.read_text() for file in sorted((ROOT / ".github").glob("*/**/*.yml"))}
    images = re.findall(r"uses: docker://(\S+)", "".join(files.values()))
    assert images
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images), images
    assert not any("pipx" in text for text in files.values())
    (listed,) = re.findall(r"pip install --require-hashes --no-deps -r (\S+)", files["wheels.yml"])
    for requirement in (ROOT / listed).read_text().splitlines():
        assert re.fullmatch(r"#.*|[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", requirement), requirement


def test_every_job_ends_and_a_release_waits_for_a_reviewer() -> None:
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = file.read_text()
        assert text.count("    runs-on:") == text.count("    timeout-minutes:") > 0, file.name
    assert "\n    environment: release\n" in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_page_of_the_gate_and_our_workflow_call_the_action_by_its_inputs() -> None:
    known = inputs(ACTION.read_text(), "inputs", 0)
    assert {"arguments", "build"} <= known
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text()
    (snippet,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "perf-gate@" in block]
    assert len(page.splitlines()) <= 120
    assert "\n    timeout-minutes: " in snippet
    assert "runs-on: {group: " in snippet
    assert "kvbench/kvbench/.github/actions/perf-gate@COMMIT" in snippet
    workflow = (ROOT / ".github" / "workflows" / "perf-gate.yml").read_text()
    for text in (snippet, workflow.partition("uses: ./.github/actions/perf-gate")[2]):
        given = inputs(text, "with", 8)
        assert given
        assert given <= known
