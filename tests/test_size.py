"""The check of the package's size fails where it should."""

from pathlib import Path

import pytest

from tests import size


def test_a_package_may_grow_by_two_percent_over_the_figure() -> None:
    assert size.allowed_lines("\nThe package has 20 000 lines of Python.\n") == 20_400


def test_a_page_without_the_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="The package has N lines"):
        size.allowed_lines("The package is small.")


def test_a_function_longer_than_a_screen_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text('def short():\n    """Doc."""\n\n\ndef long():\n' + "    pass\n" * 61)
    assert size.too_long([tmp_path / "a.py"]) == [(61, "a.py:long")]


def test_an_arrow_is_from_one_room_to_another(tmp_path: Path) -> None:
    package = tmp_path / "house"
    texts = {
        "hall/door.py": "from house.hall.key import turn\nfrom house import cellar\n",
        "hall/key.py": "def turn() -> None:\n    import house.attic.beam\n    import json\n",
        "attic/beam.py": "from house.cellar import wine\n",
        "cellar.py": "import os.path\n",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert size.arrows(package) == {("hall", "cellar"), ("hall", "attic"), ("attic", "cellar")}


def test_a_package_beyond_its_figure_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "MOST_GROWTH", -0.5)
    assert size.main() == 1
