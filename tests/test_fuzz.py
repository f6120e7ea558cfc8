"""A short run of the fuzzer; `make fuzz` is the long one."""

from tests.fuzz import fuzz


def test_hostile_input_ends_with_a_documented_code_and_a_line() -> None:
    findings, codes = fuzz(cases=270, seed=20_251)
    assert not findings
    assert {0, 2, 4} <= set(codes)
