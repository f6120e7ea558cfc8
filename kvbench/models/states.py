"""The states that a linear layer keeps of a sequence: the last inputs of a convolution, and what recurs; and families
of models in which such layers stand among layers that attend.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from kvbench.ground.text import quoted
from kvbench.models.fields import FieldError, Fields, NoneOrMore, layer_count
from kvbench.models.geometry import CachePart
from kvbench.models.rows import Cache, Layers, kinds_of, latent, usual_rows

_IN_TABLE: Final = "num_heads head_dim short_conv_kernel_size"
# The fields that list the kinds of layers.
KIND_FIELDS: Final = ("layers_block_type", "layer_types")


def state_of(units: int, conv_elements: int, elements: int, element_bytes: int) -> list[Cache]:
    """A layer's state: the convolution's in 16 bits, and the recurrent one, in `units` that ranks divide."""
    row_bytes = (conv_elements * 2 + elements * element_bytes) // units
    return [Cache(units, row_bytes, 1, CachePart.STATES, row_bytes=row_bytes)]


def _element_bytes(fields: Fields, name: str) -> int:
    """The bytes of an element of a recurrent state; without a type it has the model's 16 bits."""
    kind = fields.get(name)
    known: Final[Mapping[object, int]] = {None: 2, "bfloat16": 2, "float16": 2, "float32": 4}
    if not isinstance(kind, str | None) or kind not in known:
        raise FieldError(name, f"{quoted(kind)} is not one of bfloat16, float16, float32")
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


@dataclass(frozen=True, slots=True)
class Mixed:
    """A family whose layers attend, have a state, or (as `attends` says) both: "hybrid". Called, it reads them.

    Which attend is told by the first field of `kinds` that a file has, by `attn_type_list`, by the field `indexes`, or
    by the field `period` (`usual` is its class's) and the field `offset`, without which the last of each period does.
    With `has_tail`, those after the last whole period attend too. `has_sizes` tells whether the files of the family
    have the sizes of its state.
    """

    state: Callable[[Fields], list[Cache]] | None = None
    attends: str = "full"
    is_latent: bool = False
    has_sizes: bool = True
    kinds: Sequence[str] = KIND_FIELDS
    indexes: str = ""
    period: str = ""
    usual: int = 0
    offset: str = ""
    has_tail: bool = False

    def __call__(self, fields: Fields) -> Layers:
        kinds = self._kinds(fields)
        if self.is_latent:
            rows = latent(fields, len(kinds), known=("full", "state"))
        else:
            rows = [usual_rows(fields)] * len(kinds)
        states = self._states(fields, needed=not {"state", "conv", "hybrid"}.isdisjoint(kinds))
        layers = []
        for row, kind in zip(rows, kinds, strict=True):
            attends, has_state = kind in ("full", "hybrid"), kind not in ("full", "none")
            layers.append((row if attends else []) + (states if has_state else []))
        return layers

    def _states(self, fields: Fields, *, needed: bool) -> list[Cache]:
        try:
            return self.state(fields) if self.state else []
        except FieldError:
            if self.has_sizes and needed:
                raise
            return []

    def _kinds(self, fields: Fields) -> list[str]:
        """The kind of each layer. Every field is read, also after one decided: what nobody read is refused."""
        lists = [fields.get(name) for name in self.kinds]
        listed = next((value for value in lists if isinstance(value, list | str)), None)
        count = layer_count(fields) if listed is None or fields.has("num_hidden_layers") else len(listed)
        kinds = kinds_of(fields, count, ("full", "state", "none", "conv", self.attends), self.kinds)
        flags = fields.flags("attn_type_list", count)
        indexes: list[int] | None = fields.read(self.indexes, list[NoneOrMore] | None) if self.indexes else None
        period = (fields.whole(self.period) if self.period else None) or self.usual
        within = Annotated[int, msgspec.Meta(ge=0, le=period - 1)]
        offset: int = fields.read(self.offset, within, 4) if self.offset else period - 1  # Jamba's default
        if kinds:
            return kinds
        if indexes is not None:
            flags = [layer in indexes for layer in range(count)]
        if not flags and not period:
            raise FieldError(self.period or self.kinds[0], "missing; a config.json of this kind of model must have it")
        tail = count // period * period if self.has_tail else count
        flags = flags or [layer % period == offset or layer >= tail for layer in range(count)]
        return [self.attends if attends else "state" for attends in flags]
