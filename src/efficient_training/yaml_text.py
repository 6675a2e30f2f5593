"""YAML as its user wrote it: no key that is written twice, and whatever PyYAML cannot take is one line."""

from typing import Any

import yaml

from .errors import UserError, shown

MORE_THAN_YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    OverflowError,
    RecursionError,
)
"""What PyYAML raises: it lets pass what `int`, `date` and the like say of `0x_`, 2024-13-45 or `!!int ""`."""


def load_yaml(text: str, where: str) -> object:
    """What `text` says, `None` where it says nothing; raises `UserError` naming `where`, the line, and the fault."""
    try:
        return yaml.load(text, _UniqueKeys)
    except MORE_THAN_YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UserError(f"{where}:{line} not valid YAML: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(getattr(error, "problem", None) or error)
    return " ".join(text.split())


class _UniqueKeys(yaml.SafeLoader):
    """YAML without the silent loss of a key that is written twice, and with the line of a value that cannot be."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse what PyYAML lets pass: a key of the same mapping twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is written twice", key.start_mark)
            seen.add(key.value)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the value, and its line, where Python's own types refuse it."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            what = shown(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"{what} is no {kind}", node.start_mark) from None
