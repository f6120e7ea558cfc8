"""Whether a host is healthy: what is expected of its figures, what is wrong first, and hosts side by side."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.cli.main import app
from kvbench.ground.errors import UsageError
from kvbench.machine.doctor import Check, Status
from kvbench.report import health
from kvbench.report.health import SPEC, cards, health_of, link_gbps, reached_by, unmeasured_health
from kvbench.results import Ceiling, Record, Run
from kvbench.results.between_runs import spread_between
from kvbench.results.schema import Disturbance, Roof, Visit
from kvbench.sweep.plan import expand
from tests import synthetic
from tests.reports import run_of
from tests.strategies import H200, H200_BACKENDS

CARD, OF_CARD = next(iter(cards().items()))
LINK = {"pcie_generation": 5, "pcie_width": 16}
KIB = 1024


def made(
    *,
    copies: float = 55.0,
    d2h_copies: float | None = None,
    blocks_per_s: float = 28e6,
    pool_bytes: int = 1 << 34,
    path: str = "copy engine",
    title: str = CARD,
    records: tuple[Record, ...] = (),
    **observed: Any,
) -> Run:
    """A run with these rates, in which the CPU copies blocks up to 24 KiB."""
    rates = {"h2d": copies, "d2h": d2h_copies or copies}
    ceilings = [
        Ceiling(direction=way, round=0, swap_bytes=1 << 30, event_us=[(1 << 30) / gbps / 1e3] * 3)
        for way, gbps in rates.items()
    ]
    times = {"copy_us": [9.0], "scattered_us": [1e12 / blocks_per_s], "dense_us": [1.0]}
    roofs = [
        Roof(direction=way, round=0, pool_bytes=pool_bytes, copy_bytes=9, blocks=10**6, block_bytes=512, **times)  # type: ignore[arg-type]
        for way in ("h2d", "d2h")
    ]
    sizes = {size: "CPU inline" if size <= 24 * KIB else path for size in (16 * KIB, 24 * KIB, 28 * KIB)}
    cells = {Cell("batched", Direction.H2D, 64, size, StreamState.IDLE): how for size, how in sizes.items()}
    visits = [msgspec.structs.replace(synthetic.visit(cell, 100.0, count=3), path=how) for cell, how in cells.items()]
    identity = {"gpu_name": title, "pcie_max_generation": 5, "pcie_max_width": 16}
    looks = [{**LINK, **observed, **of_idle} for of_idle in ({"pcie_generation": 1}, {})]
    info = synthetic.info(title, observed=looks, identity=identity)
    return run_of([*ceilings, *roofs, *visits, *records], info)


def slow_cpu(visit: Visit) -> Visit:
    return msgspec.structs.replace(visit, disturbed=[Disturbance.SLOW_CPU])


def test_what_a_link_gives_is_what_committed_cards_reached_over_it() -> None:
    for card in cards().values():
        expected = link_gbps(card.link)
        assert expected is None or card.h2d_gbps == pytest.approx(expected, rel=0.03)
    assert link_gbps("PCIe 4 x16") == pytest.approx((link_gbps("PCIe 5 x16") or 0) / 2)
    assert link_gbps("PCIe 5 x8") == link_gbps("PCIe 4 x16")
    assert [link_gbps(other) for other in ("NVLink-C2C", "", "PCIe 9 x16")] == [None] * 3


def test_a_host_that_reaches_what_is_expected_is_healthy() -> None:
    health = health_of(made())
    assert (health.answer, health.problems) == ("yes", [])
    assert "55.0 of about 55 GB/s that PCIe 5 x16 gives" in health.sentence
    assert "28 M/s of 28 M on such cards" in health.sentence
    assert "batched copies take the CPU up to 24 KiB" in health.sentence


def test_a_link_that_was_read_while_the_gpu_was_idle_is_not_held_against_the_host() -> None:
    health = health_of(made(pcie_generation=1))
    assert (health.answer, health.reached and health.reached.link) == ("yes", "PCIe 5 x16")
    slow = health_of(made(copies=3.4, pcie_generation=1))
    assert slow.sentence.startswith("healthy: no: the link is PCIe 1 x16, such cards have PCIe 5 x16")


def test_of_an_unknown_card_only_the_link_is_expected() -> None:
    health = health_of(made(title="A new card", blocks_per_s=1e6))
    assert (health.answer, health.expected_blocks_per_s) == ("yes", None)
    assert "this card was not measured" in health.sentence
    nothing = health_of(made(title="A new card", pcie_width=None))
    assert (nothing.answer, nothing.expected_gbps) == ("unknown", None)
    assert "is not known" in nothing.sentence


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"copies": 27.5, "pcie_generation": 4}, "the link is PCIe 4 x16, such cards have PCIe 5 x16"),
        ({"copies": 45.0}, "large copies h2d reach 45.0 of about 55 GB/s"),
        ({"d2h_copies": 45.0}, "large copies d2h reach 45.0 of about 55 GB/s"),
        ({"blocks_per_s": 9e6}, "scattered blocks h2d reach 9.0 of 28 M/s of such cards"),
        ({"path": "per-copy fallback"}, "a batched call falls back to one copy for each block"),
    ],
)
def test_the_first_thing_that_is_wrong_is_said(changes: dict[str, Any], what: str) -> None:
    health = health_of(made(**changes))
    assert health.answer == "no"
    assert health.sentence.startswith(f"healthy: no: {what}")
    assert health.problems[0].remedy


def test_blocks_of_a_pool_that_the_caches_of_translation_cover_say_nothing() -> None:
    health = health_of(made(blocks_per_s=9e6, pool_bytes=1 << 20))
    assert health.answer == "yes"
    assert health.reached is not None
    assert health.reached.h2d_blocks_per_s is None


def test_a_failed_cell_and_a_host_that_disturbs_most_visits_are_wrong() -> None:
    cell = Cell("batched", Direction.D2H, 64, 64 * KIB, StreamState.IDLE)
    failed = health_of(made(records=(synthetic.failure(cell),)))
    assert failed.sentence.startswith("healthy: no: 1 failed cell")
    visits = tuple(slow_cpu(one) for one in synthetic.rounds([cell]))
    disturbed = health_of(made(records=visits))
    assert disturbed.problems[0].what == "other work slowed the CPU in 6 of 9 visits"
    step = Cell("batched", Direction.D2H, 64, 64 * KIB, neighbour=Neighbour.IDLE)  # whose own work takes CPUs
    beside = map(slow_cpu, synthetic.beside(step, 1.0, 20.0))
    assert health_of(made(records=(*visits[:3], *beside))).answer == "yes"


def test_a_cause_that_a_check_found_comes_before_what_it_leads_to() -> None:
    checks = [
        Check("link", Status.WARN, "PCIe gen 5 x8 of gen 5 x16 (under load)", "reseat the card"),
        Check("IOMMU", Status.INFO, "translates the GPU's addresses (DMA-FQ)", "boot with iommu=pt"),
        Check("torch", Status.WARN, "does not load", "install it"),
        Check("memlock", Status.WARN, "limit 8MiB", "ulimit -l unlimited"),
    ]
    health = health_of(made(copies=27.0, blocks_per_s=20e6), checks)
    assert [problem.what.partition(" ")[0] for problem in health.problems] == [
        "link:", "large", "large", "scattered", "scattered", "memlock:",
    ]  # fmt: skip
    assert health.sentence.startswith("healthy: no: link: PCIe gen 5 x8 of gen 5 x16 (under load); reseat the card")
    assert "(and 5 more)" in health.sentence
    assert "translates the GPU's addresses (DMA-FQ)" in health.problems[3].remedy


def test_without_a_measurement_the_checks_decide_or_nothing_is_known() -> None:
    fine = [Check("link", Status.OK, "PCIe gen 5 x16")]
    assert unmeasured_health(fine, "cuda:0").answer == "unknown"
    wrong = unmeasured_health([*fine, Check("NUMA", Status.WARN, "node 1", "numactl")], "cuda:0")
    assert wrong.sentence == "healthy: no: NUMA: node 1; numactl; nothing was measured"
    assert "say nothing about a GPU" in unmeasured_health(fine, "cpu").sentence


def test_the_sweep_of_the_doctor_has_the_cells_of_its_figures() -> None:
    plan = expand(SPEC, H200, H200_BACKENDS)
    assert not plan.skipped
    sizes = {cell.block_bytes // KIB for cell in plan.cells if cell.direction is Direction.H2D}
    assert {24, 28} <= sizes
    assert {cell.stream_state for cell in plan.cells} == {StreamState.IDLE}


# Hosts


def written(folder: Path, name: str, run: Run, **changes: Any) -> Path:
    path = folder / f"{name}.json"
    plain = {"host": "x", "device": "cuda:0", "card": CARD, "checks": [], "health": msgspec.to_builtins(health_of(run))}
    path.write_text(json.dumps(plain | changes))
    return path


def test_a_host_stands_out_by_more_than_two_starts_differ(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    spread = spread_between(CARD, "per_block, from 8 MiB").fraction
    rates = {"a": 55.0, "b": 55.0, "c": 55.0 * (1 + spread / 2), "d": 55.0 * (1 - 2 * spread)}
    paths = [written(tmp_path, name, made(copies=rate)) for name, rate in rates.items()]
    read = health.hosts_in(paths)
    assert health.host_row("a", read["a"]) == ["a", "yes", "55.0", "55.0", "28.0", "28.0", "24 KiB"]
    lines = health.host_remarks(read)
    assert [line.partition(" lies")[0] for line in lines] == ["d: h2d GB/s", "d: d2h GB/s"]
    assert f"{2 * spread:.1%} below the others'" in lines[0]
    assert not health.host_remarks({name: read[name] for name in ("a", "d")})  # of two, neither stands out
    with pytest.raises(UsageError, match="two files have one name, which is that of the host"):
        health.hosts_in([paths[0], written(others, "a", made())])
    other = health.hosts_in([*paths[:3], written(tmp_path, "e", made(copies=40.0), card="another")])
    assert all(line.startswith("e:") and "lies" not in line for line in health.host_remarks(other))
    mixed = health.host_remarks({"a": read["a"], "d": read["d"], "e": other["e"]})
    assert not [line for line in mixed if "lies" in line]  # two of one card
    shown = CliRunner().invoke(app, ["show", *map(str, paths)])
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()[:5]] == ["host", "a", "b", "c", "d"]
    (tmp_path / "f.json").touch()
    partly = CliRunner().invoke(app, ["show", *map(str, paths), str(tmp_path / "f.json")])
    assert (partly.exit_code, partly.stdout.startswith(shown.stdout)) == (2, True)
    assert "f.json:" in "".join(partly.stdout.split())  # a long path is wrapped


@pytest.mark.parametrize("text", ["", "[]", '{"card": 3}', '{"card": "x", "device": "cuda:0"}', "\x00"])
def test_a_file_that_is_not_of_the_doctor_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"host\.json: ") as caught:
        health.hosts_in([path])
    assert str(caught.value).isprintable()


def test_figures_are_the_medians_of_the_runs_that_have_them_and_of_no_run_none() -> None:
    several = reached_by([run_of([]), *(made(copies=rate) for rate in (50.0, 51.0, 55.0))])
    assert (several.link, several.h2d_gbps, several.cpu_up_to_bytes) == ("PCIe 5 x16", pytest.approx(51), 24 * KIB)
    reached = reached_by([run_of([])])
    assert (reached.h2d_gbps, reached.h2d_blocks_per_s, reached.cpu_up_to_bytes) == (None, None, None)
