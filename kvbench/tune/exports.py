"""Settings of serving engines derived from the measurement, and the loss of each against a free choice."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean
from typing import Final

from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.errors import UsageError
from kvbench.text import counted
from kvbench.tune.answer import VLLM_BELOW_BYTES, VLLM_FROM_BLOCKS, VLLM_SMS, Answer, is_vllms
from kvbench.tune.fit import sms_of
from kvbench.tune.table import Choice
from kvbench.units import size_words

# The defaults of SGLANG_HICACHE_BLOCK_QUOTA, FLEXKV_TRANSFER_NUM_CTA_* and --direct-copy-min-block-bytes.
_SGLANG_SMS: Final = 2
_FLEXKV_SMS: Final = 4
_LMCACHE_BYTES: Final = 128 << 10
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
    """The settings of a project; `measured` says which kernel represented its own."""

    project: str
    measured: str
    settings: Sequence[Setting]

    def text(self, origin: str) -> str:
        """Return the export, measured on `origin`, as lines NAME=VALUE; everything else is a comment."""
        lines = [f"# {self.project}: written for the code of autumn 2026", f"# {origin}", f"# {self.measured}"]
        for setting in self.settings:
            lines += ["", f"# {setting.how}", f"# {setting.gives}", f"{setting.name}={setting.value}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of constants against the free choice at some shapes: on average, and at worst, with the worst swap."""

    mean: float
    worst: float
    at: Answer
    shapes: int

    def words(self, of: int) -> str:
        """Return the loss as text; `of` is the number of all shapes."""
        shapes = f"at {self.shapes} of {counted(of, 'measured shape')}"
        if self.worst <= TIED.fraction:
            return f"within {TIED.fraction:.0%} of the free choice {shapes}"
        where = f"{self.at.direction} {self.at.state.quantity}, {self.at.blocks} x {size_words(self.at.block_bytes)}"
        loss = f"takes {self.mean:z.0%} more time than the free choice on average {shapes}"
        return f"{loss}, at worst {self.worst:.0%} ({where})"


# Returns what a project would take for the swap of an answer with these constants, None if it was not measured.
_Rule = Callable[..., Choice | None]


def _loss(answers: Iterable[Answer], rule: _Rule, *constants: int) -> _Loss | None:
    """Return the loss of a rule over the shapes for which its choice was measured, or None if there are none."""
    ratios = [
        (answer.time_of(choice) / answer.time_us, answer)
        for answer in answers
        if (choice := rule(answer, *constants)) is not None
    ]
    if not ratios:
        return None
    worst, at = max(ratios, key=lambda ratio: ratio[0])
    return _Loss(geometric_mean(max(ratio, 1e-9) for ratio, _ in ratios) - 1, worst - 1, at, len(ratios))


def _fit(answers: Sequence[Answer], rule: _Rule, constants: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], _Loss]:
    """Return the first of `constants` whose average loss is within `KNEE` of the best one, and its loss.

    `constants` are in order of preference, so that noise does not change the result; one at least was measured.
    """
    losses = [(values, loss) for values in constants if (loss := _loss(answers, rule, *values))]
    enough = min(loss.mean for _, loss in losses) + KNEE.fraction
    return next((values, loss) for values, loss in losses if loss.mean <= enough)


def _with_same_sms(answers: Sequence[Answer], backend: str) -> tuple[list[int], list[Answer]]:
    """Return the SM counts of a backend at half of its shapes or more, and the shapes that were measured with all."""
    counts = {
        answer: {sms_of(choice) for choice in answer.arms if choice.backend == backend} - {0} for answer in answers
    }
    shapes = Counter(count for own in counts.values() for count in own)
    least = sum(map(bool, counts.values())) / 2
    usual = {count for count, number in shapes.items() if number >= least}
    return sorted(usual), [answer for answer, own in counts.items() if own and own >= usual]


def _fit_sms(answers: Sequence[Answer], usual: int) -> tuple[int, _Loss] | None:
    """Return the SM count for sm at all shapes, and its loss against the free choice; None without any.

    It is the project's default, `usual`, if that suffices, else the smallest that does.
    """
    counts, own = _with_same_sms(answers, "sm")
    if not own:
        return None
    ordered = sorted(counts, key=lambda count: (count != usual, count))
    (sms,), loss = _fit(own, lambda answer, sms: answer.best_of("sm", sms), ((count,) for count in ordered))
    return sms, loss


def _vllm(answers: Sequence[Answer]) -> Export:
    loads = [answer for answer in answers if answer.direction is Direction.H2D and answer.state is StreamState.IDLE]
    counts, both = _with_same_sms([answer for answer in loads if answer.best_of("batched")], "triton")
    if not both:
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
    (sms, below, least), loss = _fit(both, Answer.of_vllm, ordered)
    was, of = _loss(both, Answer.of_vllm), len(loads)
    gives = f"the three together: {loss.words(of)}" + (f"; the current {today}: {was.words(of)}" if was else "")
    compared = [answer.best_of("triton", count) for answer in both for count in counts]
    in_shape = all(is_vllms(choice) for choice in compared if choice)
    stood_in = "kvbench's Triton kernel (8 warps, pieces of 16 KiB) represents vLLM's own (4 warps, pieces of 8 KiB)"
    if in_shape:
        stood_in = "kvbench's Triton kernel with vLLM's launch shape (kernel=vllm) represents vLLM's own kernel"
    constant = "a constant in vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
    taken = f"SMs not available to the model during a swap (limit them with --budget-sms); {gives}"
    variable = "an environment variable; 0, its default, is no limit on CUDA"
    return Export(
        "vLLM",
        f"h2d on an idle stream; d2h always takes the batched call. {stood_in}, which was not measured",
        [
            Setting("NUM_SMS", str(sms), constant, taken),
            Setting("THRESHOLD_BYTES", str(below), f"{constant}; gpu_worker.py imports it by name", gives),
            Setting("MIN_N", str(least), constant, gives),
            Setting("VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS", "0", variable, "not tuned: no limit was measured"),
        ],
    )


def _sglang(answers: Sequence[Answer]) -> Export:
    fitted = _fit_sms(answers, _SGLANG_SMS)
    if fitted is None:
        raise UsageError("--export sglang: requires sm with the same SM counts at half of the shapes")
    quota, loss = fitted
    how = f"an environment variable (default: {_SGLANG_SMS}). One value for both directions"
    return Export(
        "SGLang",
        "kvbench's sm kernel represents SGLang's, which was not measured: each of its thread blocks has 1024 threads "
        "and occupies one SM",
        [Setting("SGLANG_HICACHE_BLOCK_QUOTA", str(quota), how, f"SM count of sm: {loss.words(len(answers))}")],
    )


def _flexkv(answers: Sequence[Answer]) -> Export:
    settings = []
    for direction in Direction:
        own = [answer for answer in answers if answer.direction is direction]
        way = direction.value.upper()
        if fitted := _fit_sms(own, _FLEXKV_SMS):
            ctas, loss = fitted
            how = f"an environment variable (default: {_FLEXKV_SMS}). Used if FLEXKV_USE_CE_TRANSFER_{way} is 0"
            settings.append(
                Setting(f"FLEXKV_TRANSFER_NUM_CTA_{way}", str(ctas), how, f"for sm: {loss.words(len(own))}")
            )
        if copies := _loss(own, _best_copy):
            engine, how = int(copies.mean <= TIED.fraction), "an environment variable (default: 0)"
            gives = f"copies by the copy engine: {copies.words(len(own))}"
            settings.append(Setting(f"FLEXKV_USE_CE_TRANSFER_{way}", str(engine), how, gives))
    if not settings:
        raise UsageError("--export flexkv: requires sm with the same SM counts at half of the shapes, or copies")
    how = "an environment variable (default: 8). It chooses between two methods of FlexKV's copies"
    gives = "not tuned: kvbench does not measure these methods"
    return Export(
        "FlexKV",
        "kvbench's sm kernel and its copies represent FlexKV's, which were not measured",
        [*settings, Setting("FLEXKV_CE_SEGMENT_THRESHOLD", "8", how, gives)],
    )


def _best_copy(answer: Answer) -> Choice | None:
    own = [choice for choice in answer.arms if choice.backend in _COPIES]
    return min(own, key=answer.time_of, default=None)


def _lmcache(answers: Sequence[Answer]) -> Export:
    both = [answer for answer in answers if answer.best_of("batched") and answer.best_of("sm")]
    if not both:
        raise UsageError("--export lmcache: requires batched and sm at the same shapes")
    sizes = sorted({answer.block_bytes for answer in both})
    limits = sorted({*sizes, _LMCACHE_BYTES, sizes[-1] + 1}, key=lambda size: (size != _LMCACHE_BYTES, size))
    (least,), loss = _fit(
        both,
        lambda answer, least: answer.best_of("batched" if answer.block_bytes >= least else "sm"),
        ((size,) for size in limits),
    )
    mode = "kernel" if least > sizes[-1] and least != _LMCACHE_BYTES else "direct" if least == sizes[0] else "auto"
    how, gives = "an option of the multi-process server", loss.words(len(answers))
    used = f"{how}, used in the mode auto (default: {_LMCACHE_BYTES})"
    return Export(
        "LMCache",
        "batched copies represent its mode direct, kvbench's sm kernel its mode kernel; its own were not measured",
        [
            Setting("--transfer-copy-mode", mode, how, gives),
            Setting("--direct-copy-min-block-bytes", str(least), used, gives),
        ],
    )


EXPORTS: Final[Mapping[str, Callable[[Sequence[Answer]], Export]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "flexkv": _flexkv,
    "lmcache": _lmcache,
}
