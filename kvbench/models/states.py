"""The states that a linear layer keeps of a sequence: the last inputs of a convolution, and what recurs."""

import math
from collections.abc import Mapping
from typing import Final

from kvbench.models.fields import FieldError, Fields
from kvbench.models.geometry import CachePart
from kvbench.models.rows import Cache
from kvbench.text import shown

_IN_TABLE: Final = "num_heads head_dim short_conv_kernel_size"


def state_of(units: int, conv_elements: int, elements: int, element_bytes: int) -> list[Cache]:
    """Return a layer's state: the convolution's in 16 bits, and the recurrent one, in `units` that ranks divide."""
    row_bytes = (conv_elements * 2 + elements * element_bytes) // units
    return [Cache(units, row_bytes, 1, CachePart.STATES, row_bytes=row_bytes)]


def _element_bytes(fields: Fields, name: str) -> int:
    """Return the bytes of an element of a recurrent state; without a type it has the model's 16 bits."""
    kind = fields.get(name)
    known: Final[Mapping[object, int]] = {None: 2, "bfloat16": 2, "float16": 2, "float32": 4}
    if not isinstance(kind, str | None) or kind not in known:
        raise FieldError(name, f"{shown(kind)} is not one of bfloat16, float16, float32")
    return known[kind]


def delta_state(fields: Fields, names: str = _IN_TABLE) -> list[Cache]:
    """Kimi's delta attention; `names` are the fields of heads, head size and kernel, where no table has them."""
    table = linear_table(fields) if fields.has("linear_attn_config") else None
    heads, size, kernel = map(table.needed, _IN_TABLE.split()) if table else map(fields.needed, names.split())
    return state_of(heads, 3 * (kernel - 1) * heads * size, heads * size * size, 4)


def gated_delta_state(fields: Fields) -> list[Cache]:
    keys, values = fields.needed("linear_num_key_heads"), fields.needed("linear_num_value_heads")
    key_dim, value_dim = fields.needed("linear_key_head_dim"), fields.needed("linear_value_head_dim")
    conv = (fields.needed("linear_conv_kernel_dim") - 1) * (2 * keys * key_dim + values * value_dim)
    size = _element_bytes(fields, "mamba_ssm_dtype")
    return state_of(math.gcd(keys, values), conv, values * value_dim * key_dim, size)


def mamba2_state(fields: Fields, names: str) -> list[Cache]:
    """`names` are the fields of heads, head size, groups, states and kernel."""
    of_heads, of_size, *others = names.split()
    heads, (groups, state_size, kernel) = fields.needed(of_heads), map(fields.needed, others)
    automatic = fields.get(of_size) in (None, "auto")
    size = _inner_size(fields) // heads if automatic else fields.needed(of_size)
    conv = (kernel - 1) * (heads * size + 2 * groups * state_size)
    bytes_of_state = _element_bytes(fields, "mamba_ssm_cache_dtype")
    return state_of(math.gcd(heads, groups), conv, heads * size * state_size, bytes_of_state)


def mamba1_state(fields: Fields) -> list[Cache]:
    inner, conv = _inner_size(fields), fields.needed("mamba_d_conv") - 1
    elements = inner * fields.needed("mamba_d_state")
    return state_of(inner, conv * inner, elements, _element_bytes(fields, "mamba_ssm_dtype"))


def _inner_size(fields: Fields) -> int:
    return fields.whole("mamba_d_ssm") or (fields.whole("mamba_expand", "expand") or 2) * fields.needed("hidden_size")


def conv_state(fields: Fields) -> list[Cache]:
    width = fields.whole("conv_dim") or fields.needed("hidden_size")
    return state_of(width, (fields.needed("conv_L_cache") - 1) * width, 0, 0)


def linear_table(fields: Fields) -> Fields:
    table = fields.table("linear_attn_config")
    table.skip(f"full_attn_layers kda_layers gate_lower_bound use_full_rank_gate {_IN_TABLE}")
    return table
