"""What is said to have moved the bytes, from the CPU time that the calls took."""

import pytest

from kvbench.backends.base import Mechanism
from kvbench.measure import visit
from kvbench.measure.visit import effective_path
from kvbench.results.schema import EffectivePath


@pytest.mark.parametrize(
    ("cpu_us", "busy_cpu_us", "path"),
    [
        ([1900.0, 2100.0, 2000.0], 450.0, EffectivePath.CPU_INLINE),
        ([440.0, 460.0, 450.0], 450.0, EffectivePath.COPY_ENGINE),
        # a CPU at half its speed for all samples but one has not copied
        ([795.0, 802.0, 445.0, 795.0, 769.0], 436.0, EffectivePath.COPY_ENGINE),
        # on a busy stream there is nothing to compare with, and nothing that the driver would copy itself
        ([2000.0], None, EffectivePath.COPY_ENGINE),
    ],
)
def test_a_batched_call_copied_inside_when_no_sample_was_as_short_as_a_mere_submission(
    cpu_us: list[float], busy_cpu_us: float | None, path: EffectivePath
) -> None:
    assert effective_path(Mechanism.BATCHED_COPY, cpu_us, busy_cpu_us) is path


@pytest.mark.parametrize(
    ("mechanism", "path"),
    [
        (Mechanism.SINGLE_COPIES, EffectivePath.COPY_ENGINE),
        (Mechanism.FALLBACK, EffectivePath.FALLBACK),
        (Mechanism.SM_KERNEL, EffectivePath.SM_KERNEL),
        (Mechanism.HOST_THREAD, EffectivePath.HOST_THREAD),
    ],
)
def test_every_other_mechanism_has_one_way(mechanism: Mechanism, path: EffectivePath) -> None:
    assert effective_path(mechanism, [2000.0], None) is path


def test_newer_drivers_may_copy_a_batch_with_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, path in ((13_000, EffectivePath.COPY_ENGINE), (13_010, EffectivePath.ENGINE_OR_SMS)):
        monkeypatch.setattr(visit, "driver_version", lambda version=version: version)
        assert effective_path(Mechanism.BATCHED_COPY, [10.0], 10.0) is path
        assert effective_path(Mechanism.SINGLE_COPIES, [10.0], None) is EffectivePath.COPY_ENGINE
        asked = effective_path(Mechanism.BATCHED_COPY, [10.0], 10.0, prefer_overlap=True)
        assert asked is EffectivePath.COPY_ENGINE
