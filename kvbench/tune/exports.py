"""Settings of serving engines derived from the measurement, and the loss of each against a free choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from typing import Any, Final

from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.errors import UsageError
from kvbench.tune.answer import VLLM_BELOW_BYTES, VLLM_FROM_BLOCKS, VLLM_SMS, Answer, is_vllms, shown_size
from kvbench.tune.fit import sms_of
from kvbench.tune.table import Choice

# The defaults of SGLANG_HICACHE_BLOCK_QUOTA and FLEXKV_TRANSFER_NUM_CTA_*.
_SGLANG_SMS: Final = 2
_FLEXKV_SMS: Final = 4
_COPIES: Final = ("batched", "primed", "per_block")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name and value, how to set it and where it is read, and its effect."""

    name: str
    value: str
    how: str
    gives: str


@dataclass(frozen=True, slots=True)
class Export:
    """The settings of a project; `written_for` is its version, `measured` says which kernel represented its own."""

    project: str
    written_for: str
    measured: str
    settings: Sequence[Setting]

    def text(self) -> str:
        """Return the export as text that a shell can source: everything except settings is a comment."""
        lines = [f"# {self.project}: written for {self.written_for}", f"# {self.measured}"]
        for setting in self.settings:
            lines += ["", f"# {setting.how}", f"# {setting.gives}", f"{setting.name}={setting.value}"]
        return "\n".join(lines) + "\n"


def export(name: str, answers: Sequence[Answer]) -> Export:
    """Return the settings of a project; raises UsageError for an unknown project, and if required cells are missing."""
    if name not in EXPORTS:
        raise UsageError(f"--export {name}: not an export; write {', '.join(EXPORTS)} or json")
    return EXPORTS[name](answers)


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of constants against the free choice: on average, and at worst, with the worst swap."""

    mean: float
    worst: float
    at: Answer

    def words(self) -> str:
        if self.worst <= TIED.fraction:
            return f"within {TIED.fraction:.0%} of the free choice at every measured shape"
        where = f"{self.at.direction} {self.at.state.quantity}, {self.at.blocks} x {shown_size(self.at.block_bytes)}"
        return f"takes {self.mean:z.0%} more time than the free choice on average, at worst {self.worst:.0%} ({where})"


Picked = Callable[[Answer], Choice | None]


def _loss(answers: Iterable[Answer], picked: Picked) -> _Loss | None:
    """Return the loss of `picked` over the shapes for which it was measured, or None if there are none."""
    ratios = [
        (answer.time_of(choice) / answer.time_us, answer)
        for answer in answers
        if (choice := picked(answer)) is not None
    ]
    if not ratios:
        return None
    worst, at = max(ratios, key=lambda ratio: ratio[0])
    mean = exp(sum(log(max(ratio, 1e-9)) for ratio, _ in ratios) / len(ratios))
    return _Loss(mean - 1, worst - 1, at)


def _fit(
    answers: Sequence[Answer], constants: Iterable[tuple[int, ...]], pick: Callable[[tuple[int, ...]], Picked]
) -> tuple[tuple[int, ...], _Loss] | None:
    """Return the first of `constants` whose average loss is within `KNEE` of the best one, and its loss.

    `constants` are in order of preference, so that noise does not change the result.
    """
    losses = [(values, loss) for values in constants if (loss := _loss(answers, pick(values)))]
    least = min((loss.mean for _, loss in losses), default=0.0)
    return next(((values, loss) for values, loss in losses if loss.mean <= least + KNEE.fraction), None)


def _with_all_sms(answers: Sequence[Answer], backend: str) -> tuple[list[int], list[Answer]]:
    """Return the measured SM counts of a backend, and the shapes that were measured with all of them."""
    counts = {
        answer: {sms_of(choice) for choice in answer.arms if choice.backend == backend} - {0} for answer in answers
    }
    every = set[int]().union(*counts.values())
    return sorted(every), [answer for answer, own in counts.items() if own and own == every]


def _sms_of(answers: Sequence[Answer], backend: str, usual: int) -> tuple[tuple[int, ...], _Loss] | None:
    """Return the SM count for a backend at all shapes, and its loss against the free choice.

    It is the project's default, `usual`, if that suffices, else the smallest that does.
    """
    counts, own = _with_all_sms(answers, backend)
    ordered = sorted(counts, key=lambda count: (count != usual, count))
    return _fit(own, ((count,) for count in ordered), _with_sms(backend))


def _with_sms(backend: str) -> Callable[[tuple[int, ...]], Picked]:
    return lambda values: lambda answer: answer.best_of(backend, values[0])


def _vllm(answers: Sequence[Answer]) -> Export:
    loads = [answer for answer in answers if answer.direction is Direction.H2D and answer.state is StreamState.IDLE]
    counts, both = _with_all_sms([answer for answer in loads if answer.best_of("batched")], "triton")
    if not both or not counts:
        raise UsageError("--export vllm: requires cells of triton and batched with direction=h2d on an idle stream")
    sizes = sorted({answer.block_bytes for answer in both})
    limits = sorted({VLLM_BELOW_BYTES, *sizes, sizes[-1] + 1})
    blocks = sorted({VLLM_FROM_BLOCKS, *(answer.blocks for answer in both)})
    today = (VLLM_SMS, VLLM_BELOW_BYTES, VLLM_FROM_BLOCKS)
    # The current constants come first, then those with the fewest changes and the fewest SMs.
    ordered = sorted(
        product(counts, limits, blocks),
        key=lambda values: (sum(a != b for a, b in zip(values, today, strict=True)), values),
    )

    def pick(values: tuple[int, ...]) -> Picked:
        sms, below, least = values
        return lambda answer: (
            answer.best_of("triton", sms)
            if answer.block_bytes < below and answer.blocks >= least
            else answer.best_of("batched")
        )

    fitted = _fit(both, ordered, pick)
    assert fitted is not None  # every answer has both
    (sms, below, least), loss = fitted
    was = _loss(both, pick(today))
    gives = f"the three together: {loss.words()}" + (f"; the current {today}: {was.words()}" if was else "")
    in_shape = all(is_vllms(choice) for answer in both if (choice := answer.best_of("triton")))
    stood_in = "kvbench's Triton kernel (8 warps, pieces of 16 KiB) represents vLLM's own (4 warps, pieces of 8 KiB)"
    if in_shape:
        stood_in = "kvbench's Triton kernel with vLLM's launch shape (kernel=vllm) represents vLLM's own kernel"
    file = "vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
    return Export(
        "vLLM",
        "the code of autumn 2026",
        f"h2d on an idle stream; d2h always takes the batched call. {stood_in}, which was not measured",
        [
            Setting(
                "NUM_SMS",
                str(sms),
                f"a constant in {file}",
                f"SMs not available to the model during a swap (limit them with --budget-sms); {gives}",
            ),
            Setting("THRESHOLD_BYTES", str(below), f"a constant in {file}; gpu_worker.py imports it by name", gives),
            Setting("MIN_N", str(least), f"a constant in {file}", gives),
            Setting(
                "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS",
                "0",
                "an environment variable; 0, its default, is no limit on CUDA",
                "not tuned: no limit was measured",
            ),
        ],
    )


def _sglang(answers: Sequence[Answer]) -> Export:
    fitted = _sms_of(answers, "sm", _SGLANG_SMS)
    if fitted is None:
        raise UsageError("--export sglang: requires sm with the same SM counts at every shape")
    (quota,), loss = fitted
    return Export(
        "SGLang",
        "the code of autumn 2026",
        "kvbench's sm kernel represents SGLang's, which was not measured: each of its thread blocks has 1024 threads "
        "and occupies one SM",
        [
            Setting(
                "SGLANG_HICACHE_BLOCK_QUOTA",
                str(quota),
                f"an environment variable (default: {_SGLANG_SMS}). One value for both directions",
                f"SM count of sm: {loss.words()}",
            )
        ],
    )


def _flexkv(answers: Sequence[Answer]) -> Export:
    settings = []
    for direction in Direction:
        own = [answer for answer in answers if answer.direction is direction]
        way = direction.value.upper()
        if fitted := _sms_of(own, "sm", _FLEXKV_SMS):
            (ctas,), loss = fitted
            how = f"an environment variable (default: {_FLEXKV_SMS}). Used if FLEXKV_USE_CE_TRANSFER_{way} is 0"
            settings.append(Setting(f"FLEXKV_TRANSFER_NUM_CTA_{way}", str(ctas), how, f"for sm: {loss.words()}"))
        if copies := _loss(own, _best_copy):
            engine = copies.mean <= TIED.fraction
            settings.append(
                Setting(
                    f"FLEXKV_USE_CE_TRANSFER_{way}",
                    str(int(engine)),
                    "an environment variable (default: 0)",
                    f"copies by the copy engine: {copies.words()}",
                )
            )
    if not settings:
        raise UsageError("--export flexkv: requires sm with the same SM counts at every shape, or copies")
    settings.append(
        Setting(
            "FLEXKV_CE_SEGMENT_THRESHOLD",
            "8",
            "an environment variable (default: 8). It chooses between two methods of FlexKV's copies",
            "not tuned: kvbench does not measure these methods",
        )
    )
    return Export(
        "FlexKV",
        "the code of autumn 2026",
        "kvbench's sm kernel and its copies represent FlexKV's, which were not measured",
        settings,
    )


def _best_copy(answer: Answer) -> Choice | None:
    own = [choice for choice in answer.arms if choice.backend in _COPIES]
    return min(own, key=answer.time_of, default=None)


def _lmcache(answers: Sequence[Answer]) -> Export:
    both = [answer for answer in answers if answer.best_of("batched") and answer.best_of("sm")]
    if not both:
        raise UsageError("--export lmcache: requires batched and sm at the same shapes")
    sizes = sorted({answer.block_bytes for answer in both})
    usual = 128 << 10

    def pick(values: tuple[int, ...]) -> Picked:
        (least,) = values
        return lambda answer: answer.best_of("batched" if answer.block_bytes >= least else "sm")

    limits = sorted({*sizes, usual, sizes[-1] + 1}, key=lambda size: (size != usual, size))
    fitted = _fit(both, ((size,) for size in limits), pick)
    assert fitted is not None  # every shape has both
    (least,), loss = fitted
    mode = "kernel" if least > sizes[-1] and least != usual else "direct" if least == sizes[0] else "auto"
    return Export(
        "LMCache",
        "the code of autumn 2026",
        "batched copies represent its mode direct, kvbench's sm kernel its mode kernel; its own were not measured",
        [
            Setting("--transfer-copy-mode", mode, "an option of the multi-process server", loss.words()),
            Setting(
                "--direct-copy-min-block-bytes",
                str(least),
                "an option of the multi-process server, used in the mode auto (default: 131072)",
                loss.words(),
            ),
        ],
    )


EXPORTS: Final[Mapping[str, Callable[[Sequence[Answer]], Export]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "flexkv": _flexkv,
    "lmcache": _lmcache,
}


def to_plain(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return all answers as JSON-compatible data."""
    return {"answers": [answer.to_plain() for answer in answers]}
