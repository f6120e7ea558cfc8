"""The sizes of a dense model's layers on one rank: what a decode step or a prefill beside the swaps computes."""

from pathlib import Path
from typing import Final

import msgspec

from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import name_of
from kvbench.models.geometry import Name, Whole
from kvbench.models.hf_config import levels_of, object_in

# Sequences of a decode step, the tokens that each attends to, and bytes of an element.
BATCH, CONTEXT = 16, 2048
_ELEMENT_BYTES: Final = 2
_NEEDED: Final = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"}


class StepSizes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The layers of a model: how many, and the widths of one on one rank; `name` is the model's."""

    name: Name
    layers: Whole
    width: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    mlp_width: Whole

    @property
    def layer_bytes(self) -> int:
        """The bytes of a layer's weights."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return _ELEMENT_BYTES * (attention + 3 * self.width * self.mlp_width)

    @property
    def decode_bytes(self) -> int:
        """The bytes of all weights, and of the cache of a decode step."""
        cache = 2 * BATCH * CONTEXT * self.kv_heads * self.head_dim * _ELEMENT_BYTES
        return self.layers * (self.layer_bytes + cache)


USUAL: Final = StepSizes(name="llama-3-8b", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, mlp_width=14_336)
# Of one of 8 ranks.
OF_70B: Final = StepSizes(name="llama-3-70b", layers=80, width=8192, heads=8, kv_heads=1, head_dim=128, mlp_width=3584)


def step_sizes(name_or_path: str, tp: int) -> StepSizes | None:
    """The sizes of a preset, or of the config.json at a path, on one of `tp` ranks.

    None where the file does not tell them, and for what is not a stack of equal dense layers, such as experts.
    """
    tables = read_toml(shipped_folder() / "presets" / "models.toml")
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    if name_or_path not in tables and not path.is_file():
        return None  # numbers of its layers
    *_, text = levels_of(tables[name_or_path] if name_or_path in tables else object_in(path))
    numbers = {key: value for key, value in text.items() if isinstance(value, int) and value > 0}
    if any("expert" in key or key == "kv_lora_rank" for key in numbers) or not numbers.keys() >= _NEEDED:
        return None
    heads, width = numbers["num_attention_heads"], numbers["hidden_size"]
    return StepSizes(
        name=name_of(name_or_path if name_or_path in tables else path.absolute().parent.name, "model"),
        layers=numbers["num_hidden_layers"],
        width=width,
        heads=max(1, heads // tp),
        kv_heads=max(1, numbers.get("num_key_value_heads", heads) // tp),
        head_dim=numbers.get("head_dim", max(1, width // heads)),
        mlp_width=max(1, numbers["intermediate_size"] // tp),
    )
