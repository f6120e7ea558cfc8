"""A short run of the fuzzer; `make fuzz` is the long one."""

import copy
import random

from tests.fuzz import OTHERS, fuzz, mutated


def test_hostile_input_ends_with_a_documented_code_and_a_line() -> None:
    findings, codes = fuzz(cases=150, seed=20_251)
    assert not findings
    assert {0, 2, 4} <= set(codes)


def test_a_case_does_not_change_the_next_ones() -> None:
    before = copy.deepcopy(OTHERS)
    for number in range(200):
        mutated({"rule": [{"cells": "backend=sm", "at_least": 0.5}], "list": [[], {}]}, random.Random(number))
    assert before == OTHERS
