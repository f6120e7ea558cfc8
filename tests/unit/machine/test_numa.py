"""Host memory near the GPU: the node is asked of the driver, then of the kernel; pages that lie elsewhere are noted."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvbench.machine import probes
from kvbench.machine.probes import far_pages, nodes_of_pages, parse_cpu_list, stay_near
from kvbench.machine.sources import Sources

BUS_ID = "0000:1B:00.0"
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def stays_where_it_is() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def host(root: Path, node_of_gpu: int | None, cpus: dict[int, str]) -> Sources:
    """Return the files of a host whose node N has the CPUs `cpus[N]`."""
    nodes = root / "sys/devices/system/node"
    for node, text in cpus.items():
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}" / "cpulist").write_text(text)
    (nodes / "has_cpu").write_text(",".join(map(str, cpus)))
    if node_of_gpu is not None:
        gpu = root / "sys/bus/pci/devices/0000:1b:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(str(node_of_gpu))
    return Sources(root=root, environ={})


@pytest.mark.parametrize(("driver_says", "kernel_says"), [(1, 0), (-1, 1)])
def test_the_process_stays_on_the_cpus_of_the_node(tmp_path: Path, driver_says: int, kernel_says: int) -> None:
    sources = host(tmp_path, kernel_says, {0: "4000-4001", 1: f"{CPUS[-1]},4002"})
    assert stay_near(driver_says, BUS_ID, sources=sources) == (1, [])
    assert os.sched_getaffinity(0) == {CPUS[-1]}


def test_the_only_node_of_a_host_is_that_of_its_gpu(tmp_path: Path) -> None:
    sources = host(tmp_path, -1, {0: f"{CPUS[0]}"})
    assert stay_near(-1, BUS_ID, sources=sources) == (0, [])
    assert os.sched_getaffinity(0) == {CPUS[0]}


@pytest.mark.parametrize("kernel_says", [None, -1])
def test_a_node_that_nobody_knows_is_noted(tmp_path: Path, kernel_says: int | None) -> None:
    node, (note,) = stay_near(-1, BUS_ID, sources=host(tmp_path, kernel_says, {0: f"{CPUS[0]}", 1: "4000"}))
    assert node == -1
    assert "NUMA node is unknown" in note
    assert os.sched_getaffinity(0) == set(CPUS)


def test_a_node_whose_cpus_cannot_be_used_is_noted(tmp_path: Path) -> None:
    node, (note,) = stay_near(1, BUS_ID, sources=host(tmp_path, 1, {0: f"{CPUS[0]}", 1: "4000"}))
    assert node == 1
    assert "cannot run on the GPU's NUMA node 1" in note
    assert os.sched_getaffinity(0) == set(CPUS)


def test_pages_in_use_are_on_a_node_of_this_host_and_others_on_none() -> None:
    with mmap.mmap(-1, 1 << 20) as untouched:
        assert nodes_of_pages(np.frombuffer(untouched, np.uint8).ctypes.data, 1 << 20) == []
    used = np.ones(1 << 20, np.uint8)
    nodes = nodes_of_pages(used.ctypes.data, used.nbytes)
    there = Sources().text("sys/devices/system/node/has_memory") if Path("/sys/devices/system/node").is_dir() else "0"
    assert nodes
    assert set(nodes) <= parse_cpu_list(there)
    assert far_pages(used.ctypes.data, used.nbytes, nodes[0]) == []


def test_pages_on_another_node_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "nodes_of_pages", lambda *_: [0, 1, 1, 2])
    assert far_pages(0, 1, 1) == ["2 of 4 sampled pages of host memory are on NUMA node 0, 2, the GPU is on 1"]
    assert far_pages(0, 1, -1) == []
