"""The fields of a model's configuration: which were read, what an unread one may change, and its plain numbers."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final

import msgspec

from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import convert, quoted

Table = Mapping[str, object]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=10**6)]

# The numbers of `--model`.
NUMBERS: Final = ("layers", "kv_heads", "head_size", "window")
MOST_LAYERS: Final = 100_000
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")


class Family(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Model types whose layers are read alike; the fields are described in `families.toml`."""

    types: str
    reader: str
    options: dict[str, Any] = {}
    ignores: list[str] = []
    states_unknown: bool = False


class FamilyTables(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of `configs/presets/families.toml`, whose comments describe it."""

    family: list[Family]
    ignored: dict[str, str]
    defaults: dict[str, dict[str, int]]
    layer_kinds: dict[str, str]
    changes: dict[str, str]
    unrelated: dict[str, str]


@cache
def family_tables() -> FamilyTables:
    tables: FamilyTables = convert(read_toml(shipped_folder() / "presets" / "families.toml"), FamilyTables)
    return tables


def by_word(lists: Mapping[str, str]) -> dict[str, str]:
    """The words of some lists, each with the name of its list."""
    return {word: name for name, words in lists.items() for word in words.split()}


def changed_by(name: str) -> set[str]:
    """The `NUMBERS` that a field of this name may change; none if it is known to change no cache."""
    name = name.lower()
    words = re.split(r"[^a-z]+", name)
    parts, ends, names = (family_tables().unrelated[key].split() for key in ("parts", "ends", "names"))
    if name in names or name.endswith(tuple(ends)) or "gate" in words or any(part in name for part in parts):
        return set()
    changes = by_word(family_tables().changes)
    return {number for word in words for number in changes.get(word, "").split()}


class FieldError(UsageError):
    """A field that is wrong, missing or not known; `field` is its name."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class Fields:
    """The fields of a configuration, below `path`; remembers which of them were read."""

    def __init__(self, table: Table, path: str = "") -> None:
        # a window of -1 is none
        self._table = {name: value for name, value in table.items() if value != -1 or "window" not in name}
        self._path = path
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def get(self, name: str) -> object:
        self._read.add(name)
        return self._table.get(name)

    def skip(self, names: str) -> None:
        """Mark fields, separated by spaces, as known not to shape the cache."""
        self._read.update(names.split())

    def has(self, name: str) -> bool:
        return self._table.get(name) is not None

    def over(self, defaults: Table) -> "Fields":
        self._table = {**defaults, **{name: value for name, value in self._table.items() if value is not None}}
        return self

    def error(self, name: str, why: str) -> FieldError:
        return FieldError(self._path + name, why)

    def read(self, name: str, kind: Any, default: object = None) -> Any:
        """The value of a field as a `kind`, with `default` in place of null."""
        value = self.get(name)
        try:
            return convert(default if value is None else value, kind, self._path + name)
        except UsageError as error:
            raise self.error(name, str(error).removeprefix(f"{self._path}{name}: ")) from None

    def whole(self, *names: str) -> int | None:
        """The value of a field that has these names; raises FieldError if two of them differ."""
        read = {name: self.read(name, Count | None) for name in names}
        values = {name: value for name, value in read.items() if value is not None}
        if len(set(values.values())) > 1:
            listed = " and ".join(f"{name} {value}" for name, value in values.items())
            raise self.error(names[0], f"{listed} contradict each other")
        return next(iter(values.values()), None)

    def needed(self, *names: str) -> int:
        value = self.whole(*names)
        if value is None:
            raise self.error(names[0], "missing; a config.json of this kind of model must have it")
        return value

    def upto(self, name: str, most: int) -> int:
        value: int = self.read(name, Annotated[int, msgspec.Meta(ge=0, le=most)], 0)
        return value

    def items(self, name: str, count: int, *, at_least: bool = False) -> list[Any] | None:
        """A list with an item for each of `count` layers, or None if it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | str) or len(value) < count or (len(value) > count and not at_least):
            raise self.error(name, f"{quoted(value)} is not a list of {count} items, one for each layer")
        return list(value)[:count]

    def flags(self, name: str, count: int) -> list[bool] | None:
        """A list with 0 or 1 for each of `count` layers as booleans, or None if it is absent."""
        values = self.items(name, count)
        if any(value not in (0, 1) for value in values or ()):
            raise self.error(name, f"{quoted(values)} has other values than 0 and 1")
        return values and [bool(value) for value in values]

    def table(self, name: str) -> "Fields":
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.error(name, f"{quoted(value)} is not a table")
        inner = Fields(value, f"{self._path}{name}.")
        self._inner.append(inner)
        return inner

    def unread(self) -> Iterator[tuple[str, object]]:
        """Yield name and value of fields that may change the cache and that were not read."""
        for name, value in self._table.items():
            if value and name not in self._read and changed_by(name):
                yield self._path + name, value
        for inner in self._inner:
            yield from inner.unread()

    def refuse_unread(self, family: str) -> None:
        for name, value in self.unread():
            why = "may change the KV cache, and kvbench does not know how for model_type"
            raise FieldError(name, f"{quoted(value)} {why} {family}")


def layer_count(fields: Fields) -> int:
    layers = fields.needed("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
    if layers > MOST_LAYERS:
        raise FieldError("num_hidden_layers", f"{layers} layers are more than {MOST_LAYERS}")
    return layers


def head_size(fields: Fields) -> int:
    size = fields.whole("head_dim", "attention_head_dim") or fields.whole("kv_channels")
    hidden, heads = fields.whole("hidden_size", "n_embd", "d_model"), fields.whole(*_HEADS)
    if size is not None:
        return size
    if hidden is None or heads is None:
        missing = "num_attention_heads" if heads is None else "hidden_size"
        raise FieldError(missing, "missing; without head_dim a config.json must have it")
    if hidden % heads:
        raise FieldError("head_dim", f"missing; hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def kv_heads(fields: Fields, *names: str) -> int:
    """The number of KV heads: by default that of the query heads."""
    heads = fields.whole(*_HEADS)
    single = fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True
    given = fields.whole(*(names or _KV_HEADS))
    if isinstance(fields.get("attn_config"), dict):
        table = fields.table("attn_config")
        table.skip("attn_impl attn_uses_sequence_id")
        given = table.whole("kv_n_heads", *_KV_HEADS) or given
        single = table.get("attn_type") == "multiquery_attention"
    grouped = fields.whole("multi_query_group_num")
    if fields.get("multi_query_attention") is True:
        return grouped or 1
    return 1 if single else given or heads or fields.needed("num_attention_heads")
