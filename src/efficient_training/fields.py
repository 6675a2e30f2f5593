"""Frozen dataclasses that validate themselves on construction, and travel through YAML and JSON.

One reader for all of them, so that a typing error in a file is said in the same words everywhere.
"""

import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import UserError, shown

T = TypeVar("T")

LARGEST = 2**63 - 1
"""No whole number is above it: sizes and counts are those of int64."""


class FieldError(UserError):
    """What is wrong with one field alone."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check_types(instance: Any) -> None:
    """Check each field against its annotation (int, float, bool, str, Literal, a dataclass, or one of these or None).

    To be called from `__post_init__`. Whole numbers of another type, NumPy's say, become Python's. Raises `UserError`
    naming the class, the field, and what it may be.
    """
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value, hint = getattr(instance, field.name), hints[field.name]
        if int in _options(hint):
            value = as_int(value)
            object.__setattr__(instance, field.name, value)
        if not _fits(value, hint):
            message = f"{_word(instance)}: {field.name} must be {_describe(hint)}, got {shown(value)}"
            raise FieldError(field.name, message)


def as_int(value: Any) -> Any:
    """A whole number of any type as Python's own; anything else as it is."""
    return value if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)


def check_positive(instance: Any, *names: str) -> None:
    """Check that these numeric fields are above zero, and countable; raises `UserError`."""
    for name in names:
        value = getattr(instance, name)
        if value is not None and value <= 0:
            raise FieldError(name, f"{_word(instance)}: {name} must be above zero, got {shown(value)}")
        if isinstance(value, int) and value > LARGEST:
            raise FieldError(name, f"{_word(instance)}: {name} must be at most 2^63 - 1, got {shown(value)}")


def from_mapping(cls: type[T], data: object, where: str, sources: Mapping[Any, str] | None = None) -> T:
    """Build `cls` from a mapping read from YAML or JSON; nested dataclasses are built from nested mappings.

    Raises `UserError` naming `where` and the field, for an unknown field, a missing one, or a value that does not fit;
    `sources` says of which field it is to name another place.
    """
    sources = sources or {}
    word = _word(cls)
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: {word} must be a mapping of fields, got {type(data).__name__}")
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            place = sources.get(name, where)
            raise UserError(f"{place}: {word} has no field {shown(name)}; fields: {', '.join(known)}")
    for name, field in known.items():
        if name not in data and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: {word} needs the field {name!r}")
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in data.items():
        nested = hints[name]
        if dataclasses.is_dataclass(nested) and isinstance(nested, type) and isinstance(value, Mapping):
            value = from_mapping(nested, value, f"{where}, {name}")
        values[name] = value
    try:
        return cls(**values)
    except FieldError as error:
        raise UserError(f"{sources.get(error.field, where)}: {error}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def to_mapping(instance: Any) -> dict[str, Any]:
    """The fields of `instance` that differ from their defaults, or have none; `from_mapping` reads them back."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            out[field.name] = to_mapping(value) if dataclasses.is_dataclass(value) else value
    return out


def _word(of: Any) -> str:
    return (of if isinstance(of, type) else type(of)).__name__.lower()


def _options(hint: Any) -> tuple[Any, ...]:
    return (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )


def _fits(value: Any, hint: Any) -> bool:
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            if any(value == one and type(value) is type(one) for one in typing.get_args(option)):
                return True
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return True
        elif isinstance(value, option) and not (option is int and isinstance(value, bool)):
            return True
    return False


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    parts = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            parts.append("one of " + ", ".join(str(one) for one in typing.get_args(option)))
        else:
            parts.append(words.get(option) or f"a {option.__name__}")
    return " or ".join(parts)
