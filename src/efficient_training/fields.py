"""Frozen dataclasses that validate themselves on construction, and travel through YAML and JSON.

One reader for all of them, so that a typing error in a file is said in the same words everywhere.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import UserError

T = TypeVar("T")


def check_types(instance: Any) -> None:
    """Check each field against its annotation (int, float, bool, str, Literal, a dataclass, or one of these or None).

    To be called from `__post_init__`. Raises `UserError` naming the class, the field, and what it may be.
    """
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value, hint = getattr(instance, field.name), hints[field.name]
        if not _fits(value, hint):
            raise UserError(f"{_word(instance)}: {field.name} must be {_describe(hint)}, got {value!r}")


def check_positive(instance: Any, *names: str) -> None:
    """Check that these numeric fields are above zero; raises `UserError`."""
    for name in names:
        value = getattr(instance, name)
        if value is not None and value <= 0:
            raise UserError(f"{_word(instance)}: {name} must be above zero, got {value!r}")


def from_mapping(cls: type[T], data: object, where: str) -> T:
    """Build `cls` from a mapping read from YAML or JSON; nested dataclasses are built from nested mappings.

    Raises `UserError` naming `where` and the field, for an unknown field, a missing one, or a value that does not fit.
    """
    word = _word(cls)
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: {word} must be a mapping of fields, got {type(data).__name__}")
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise UserError(f"{where}: {word} has no field {name!r}; fields: {', '.join(known)}")
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
