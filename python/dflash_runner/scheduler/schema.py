"""The keys of a plugin's configuration, and a configuration that keeps them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from dflash_runner.scheduler.errors import Error, Kind

T = TypeVar("T")


class Type(enum.Enum):
    """What a key holds; closed."""

    TEXT = "text"
    INT = "int"
    NUMBER = "number"
    BOOL = "bool"
    TEXTS = "texts"  # a list

    @property
    def zero(self) -> Any:
        """The value of a key that has no other default."""
        return {"text": "", "int": 0, "number": 0.0, "bool": False, "texts": []}[self.value]

    def holds(self, value: Any) -> bool:
        """Whether `value` is of this type; a bool is no number, a whole number is one."""
        match self:
            case Type.TEXT:
                return isinstance(value, str)
            case Type.INT:
                return (
                    isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
                )
            case Type.NUMBER:
                return isinstance(value, int | float) and not isinstance(value, bool)
            case Type.BOOL:
                return isinstance(value, bool)
        return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One key of a plugin's configuration."""

    key: str  # a-z, 0-9 and '_'
    type: Type
    doc: str = ""  # meaning and unit
    required: bool = False  # has no default
    default: Any = None  # of the type; None: its zero value
    min: float | None = None  # of an int or a number
    max: float | None = None
    one_of: tuple[str, ...] = ()  # a text's closed set

    def __post_init__(self) -> None:
        """Refuse a default of another type.

        Raises:
            Error: INTERNAL, as it is the plugin's mistake.
        """
        if not isinstance(self.type, Type):
            raise Error(Kind.INTERNAL, f"schema key {self.key}: unknown type {self.type!r}")
        if self.default is not None and not self.type.holds(self.default):
            got = f"{self.default!r} ({type(self.default).__name__})"
            raise Error(Kind.INTERNAL, f"schema key {self.key}: default {got} is no {self.type.value}")

    @property
    def value(self) -> Any:
        """The default."""
        value = self.type.zero if self.default is None else self.default
        return float(value) if self.type is Type.NUMBER else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A configuration that keeps the schema: every key is there."""

    seed: int  # of the run: draw from it, so that a run can be repeated
    values: Mapping[str, Any]

    @staticmethod
    def read(raw: bytes, *, seed: int) -> Config:
        """A configuration from what travels.

        Args:
            raw: msgpack map, or empty.
            seed: of the run.

        Raises:
            Error: INVALID, it is no map.
        """
        try:
            values = msgspec.msgpack.decode(raw, type=dict[str, Any]) if raw else {}
        except msgspec.DecodeError as e:
            raise Error(Kind.INVALID, f"decode configuration: {e}") from e
        return Config(seed=seed, values=values)

    def decode(self, into: type[T]) -> T:
        """The values as a dataclass whose fields are the keys, types checked.

        Args:
            into: a dataclass or msgspec.Struct.

        Raises:
            Error: INVALID, a value is of another type, or a key has no field.
        """
        fields = (
            into.__struct_fields__
            if hasattr(into, "__struct_fields__")
            else tuple(f.name for f in dataclasses.fields(into))
        )
        for key in sorted(set(self.values) - set(fields)):
            raise Error(Kind.INVALID, f"decode configuration: {into.__name__} has no field for key {key}")
        try:
            return msgspec.convert(dict(self.values), into)
        except msgspec.ValidationError as e:
            raise Error(Kind.INVALID, f"decode configuration: {e}") from e
