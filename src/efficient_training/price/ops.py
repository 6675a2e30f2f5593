"""The few operations beyond + - * // that a price needs, on ints, arrays and recorded expressions alike."""

from collections.abc import Iterator, Mapping
from typing import Any


class Expression:
    """An arithmetic expression that records itself: a tree of operations over named leaves and ints.

    Parts that occur twice are one object, so that `program` can write each of them once.
    """

    __slots__ = ("args", "operation")

    def __init__(self, operation: str, *args: Any) -> None:
        self.operation, self.args = operation, args

    @staticmethod
    def named(name: str) -> "Expression":
        """The leaf called `name`."""
        return Expression("name", name)

    def __add__(self, other: Any) -> "Expression":
        return self if _is_zero(other) else Expression("+", self, other)

    def __radd__(self, other: Any) -> "Expression":
        return self if _is_zero(other) else Expression("+", other, self)

    def __sub__(self, other: Any) -> "Expression":
        return self if _is_zero(other) else Expression("-", self, other)

    def __rsub__(self, other: Any) -> "Expression":
        return Expression("-", other, self)

    def __mul__(self, other: Any) -> "Expression":
        return Expression("*", self, other)

    def __rmul__(self, other: Any) -> "Expression":
        return Expression("*", other, self)

    def __floordiv__(self, other: Any) -> "Expression":
        return Expression("//", self, other)

    def __rfloordiv__(self, other: Any) -> "Expression":
        return Expression("//", other, self)

    def __gt__(self, other: Any) -> "Expression":
        return Expression(">", self, other)


def program(outputs: Mapping[str, Any]) -> list[str]:
    """Assignments that work out `outputs`, one a line: Python's syntax with `max`, `min` and `where(c, yes, no)`."""
    names: dict[int, str] = {}
    lines = []
    for output, root in outputs.items():
        for part in _parts(root):
            if id(part) not in names and part.operation != "name":
                names[id(part)] = f"t{len(names)}"
                lines.append(f"{names[id(part)]} = {_written(part, names)}")
        lines.append(f"{output} = {_reference(root, names)}")
    return lines


def _parts(root: Any) -> Iterator[Expression]:
    """The parts of an expression, each after its own parts, without recursion."""
    stack, seen = [(root, False)], set()
    while stack:
        part, ready = stack.pop()
        if not isinstance(part, Expression):
            continue
        if ready:
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            stack.append((part, True))
            stack.extend((arg, False) for arg in part.args)


def _written(part: Expression, names: Mapping[int, str]) -> str:
    words = [_reference(arg, names) for arg in part.args]
    if part.operation in ("max", "min", "where"):
        return f"{part.operation}({', '.join(words)})"
    return f" {part.operation} ".join(words)


def _reference(value: Any, names: Mapping[int, str]) -> str:
    if isinstance(value, Expression):
        return str(value.args[0]) if value.operation == "name" else names[id(value)]
    return str(value)


def maximum(left: Any, right: Any) -> Any:
    """The larger of two."""
    return _choose("max", "maximum", max, left, right)


def minimum(left: Any, right: Any) -> Any:
    """The smaller of two."""
    return _choose("min", "minimum", min, left, right)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, `no` elsewhere."""
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(condition, Expression):
        return Expression("where", condition, yes, no)
    import numpy

    return numpy.where(condition, yes, no)


def _choose(word: str, array: str, plain: Any, left: Any, right: Any) -> Any:
    if isinstance(left, Expression) or isinstance(right, Expression):
        return Expression(word, left, right)
    if isinstance(left, int) and isinstance(right, int):
        return plain(left, right)
    import numpy

    return getattr(numpy, array)(left, right)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and value == 0
