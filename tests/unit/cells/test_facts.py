from kvbench.cells.facts import method_label


def test_a_method_has_one_label_with_its_sms() -> None:
    assert method_label("batched") == "batched"
    assert method_label("sm", 1) == "sm (1 SM)"
    assert method_label("triton", [12, 2]) == "triton (2 to 12 SMs)"
