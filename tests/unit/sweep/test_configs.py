from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kvbench.cells.facts import BackendFacts
from kvbench.models.presets import ModelChoice
from kvbench.sweep.plan import Plan, expand
from kvbench.sweep.spec import Limits, Sampling, SweepSpec, find_config, load_config, parse_assignments, shipped_configs
from tests.refusals import refused_with
from tests.strategies import CPU, CPU_BACKENDS, H200, H200_BACKENDS

KIB = 1024
NAMES = tuple(shipped_configs())


# Where every engine is installed.
ENGINES = (
    BackendFacts("vllm_batch", "", frozenset({"memory", "order"}), default_sms=(), on_request=True),
    *(
        BackendFacts(name, "", frozenset({"memory", "sms"}), default_sms=(), on_request=True)
        for name in ("vllm_triton", "sglang_aot", "sglang_jit")
    ),
    BackendFacts("vllm_handler", "", frozenset({"memory"}), default_sms=(), on_request=True),
    BackendFacts("vllm_hisparse", "", frozenset({"list", "memory"}), default_sms=(), on_request=True),
    BackendFacts("sglang_hisparse", "", frozenset({"list", "memory", "sms"}), default_sms=(), on_request=True),
)
CALLED = tuple(BackendFacts(name, "", frozenset(), on_request=True) for name in ("copier", "empty"))
THROUGH_TORCH = (*ENGINES, BackendFacts("empty_torch", "", frozenset(), on_request=True))
STAGED = BackendFacts("staged", "", frozenset({"memory", "sms"}), on_request=True, host_run_bytes=256 << 10)
EVERYWHERE = (*H200_BACKENDS, *CALLED, *THROUGH_TORCH, STAGED)
ON_A_HOST = (
    *CPU_BACKENDS,
    *CALLED,
    *(replace(facts, unavailable="it needs a GPU") for facts in (*THROUGH_TORCH, STAGED)),
)


def shipped(name: str) -> SweepSpec:
    return load_config(find_config(name))


@cache
def on_h200(name: str) -> Plan:
    return expand(shipped(name), H200, EVERYWHERE)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


every_config = pytest.mark.parametrize("name", NAMES)


@every_config
def test_a_shipped_config_answers_a_question_and_survives_its_plain_form(name: str) -> None:
    spec = shipped(name)
    assert find_config(name).read_text().splitlines()[0].endswith("?")
    assert spec.question.endswith("?")
    assert spec.name == name
    assert SweepSpec.from_plain(spec.to_plain()) == spec


@every_config
def test_a_shipped_config_skips_nothing_on_an_h200_and_expands_on_a_host(name: str) -> None:
    plan = on_h200(name)
    assert plan.cells
    assert not plan.skipped
    if name not in ("gate-suite", "vllm"):  # the gate counts rounds
        assert shipped(name).sampling.rounds >= 6
        # What the first call of a visit takes longer does not show in a large swap.
        assert shipped(name).sampling.warmups >= 1 or all(cell.blocks >= 1024 for cell in plan.cells)
    host = expand(shipped(name), CPU, ON_A_HOST)
    assert bool(host.skipped) is (name != "queue")
    assert all(cell.backend in ("auto", "per_block", "batched", "merged", "copier", "empty") for cell in host.cells)
    assert bool(host.cells) is (name not in ("beside-engines", "devices", "gather", "layers", "sm-ladder", "vllm"))


@every_config
def test_the_command_of_any_cell_measures_only_that_cell(name: str) -> None:
    """A cell's command is `kvbench sweep -a …`, which starts from quick: nothing in quick may prevent it."""
    for cell in on_h200(name).cells[::19]:  # hot cells, named pools and pauses are among them
        assignments = cell.command().removeprefix("kvbench sweep -a ").split(" -a ")
        assert {"pool", "reuse"} <= parse_assignments(assignments).keys()
        plan = expand(shipped("quick").with_axes(parse_assignments(assignments)), H200, EVERYWHERE)
        assert plan.cells == (cell,)
        assert not plan.skipped


def test_every_key_of_a_config_is_read(tmp_path: Path) -> None:
    text = """
        question = "why?"
        device = "cuda:1"
        seed = 7
        in_turn = ["sms", "backend"]
        filters = ["blocks<9, sms=1|2"]
        [axes]
        blocks = [4, "8:16:x2"]
        overlap = [true, "off"]
        [[group]]
        backend = "batched"
        [[group]]
        blocks = 2
        [sampling]
        rounds = 2
        cell_seconds = 0.5
        [limits]
        host_memory = "8GiB"
        device_memory = 1048576
    """
    assert load_config(write(tmp_path, text)).to_plain() == {
        "name": "mine",
        "question": "why?",
        "device": "cuda:1",
        "groups": [
            {"blocks": ["4", "8", "16"], "overlap": ["on", "off"], "backend": ["batched"]},
            {"blocks": ["2"], "overlap": ["on", "off"]},
        ],
        "filters": ["blocks<9", "sms=1|2"],
        "sampling": SweepSpec(name="x", sampling=Sampling(rounds=2, cell_seconds=0.5)).to_plain()["sampling"],
        "limits": SweepSpec(name="x", limits=Limits(2**33, 2**20)).to_plain()["limits"],
        "seed": 7,
        "fault": None,
        "trace": None,
        "policy": None,
        "models": [],
        "in_turn": ["sms", "backend"],
        "step_model": None,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead = 4", 'unknown key "sead"; did you mean seed?'),
        ("blocks = 4", "blocks is an axis; write it under [axes] or [[group]]"),
        ("[axes]\nblokcs = 4", '[axes]: unknown key "blokcs"; did you mean blocks?'),
        ("[[group]]\n[[group]]\nblock = 3", '[[group]] 2: unknown key "block"; did you mean blocks?'),
        ("[axes]\nblocks = true", '[axes]: blocks: true is not a number, a string such as "16,64,256", or a list'),
        ("[axes]\nblocks = []", "[axes]: blocks: the list is empty; leave the axis out to use its default"),
        ("[axes]\nblocks = 0", "[axes]: axis blocks=0: not a whole number from 1 to 100000000"),
        ("[axes]\nblocks = 0x" + "f" * 5000, "axis blocks=a number with thousands of digits: not a whole number"),
        ('[axes]\nbackend = "a\\nb"', "[axes]: axis backend='a\\nb': not a backend's name"),
        ("group = 3", "group: 3 is not a non-empty list of tables"),
        ("[sampling]\ncell_seconds = nan", "sampling.cell_seconds: NaN is not a number from 0.001 to 3600"),
        ("[limits]\nhost_memory = '8Gb'", '[limits] host_memory: "8Gb" is not a size'),
        ("[limits]\nhost_memory = 8", "[limits] host_memory: 8 bytes are too few for any cell; did you mean 8GiB?"),
        ("device = 'gpu'", 'device: "gpu" is not auto, cpu, cuda or cuda:N'),
        ("\n\nx = = 3", "cannot be read as TOML: Invalid value (at line 3, column 5)"),
        ("x = " + "[" * 100_000, "cannot be read as TOML: nested too deeply"),
        ("#" * 2**20 + "\n", "is larger than 1 MiB"),
        ("# nothing", "mine.toml: is empty"),
        ('models = ["llama-3-8b"]\n[axes]\nblocks = 4', "blocks: is set by the models; leave it out"),
        ('tokens = 4\nmodel = ["llama-3-8b"]', 'unknown key "model"; did you mean models?'),
    ],
)
def test_an_invalid_config_is_refused_with_its_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with refused_with(f"{path}: ", message):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.toml", f"missing.toml: file not found; shipped configs: {', '.join(NAMES)}"),
        (".", f'config ".": kvbench ships no config of that name; use one of {", ".join(NAMES)}'),
        ("./", ": is a directory, not a TOML file"),
        ("/dev/null", "/dev/null: is not a regular file"),
        ("quik", 'config "quik": kvbench ships no config of that name; did you mean quick?'),
    ],
)
def test_a_missing_config_is_refused_with_the_shipped_ones(name: str, message: str) -> None:
    with refused_with(message):
        load_config(find_config(name))


def test_filters_of_sizes_do_not_limit_the_models_that_replace_them(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("filters = ['swap_bytes<=1KiB, blocks<9', 'direction=h2d']\n[axes]\nblocks = '8'\n")
    models = ModelChoice(models=("llama-3-8b",))
    assert load_config(config).filters == ("swap_bytes<=1KiB", "blocks<9", "direction=h2d")
    assert load_config(config, models).filters == ("direction=h2d",)
    config.write_text("filters = ['swap_bytes<=1KiB']\nmodels = ['llama-3-8b']\n")
    assert load_config(config, ModelChoice(tp=2)).filters == ("swap_bytes<=1KiB",)
