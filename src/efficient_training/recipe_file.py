"""The recipe of a YAML file, with settings of the command line over it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import UserError, shown
from .fields import from_mapping
from .recipe import Recipe
from .yaml_text import load_yaml

SETTING, MICRO_BATCH = "--set", "--micro-batch"


def read_recipe(path: Path | None, settings: Sequence[str], micro_batch: int | None) -> Recipe:
    """The recipe of a YAML file, with `settings` ("field=value") and the micro-batch size over it.

    Raises `UserError` naming the file or the option, and the field.
    """
    fields = {} if path is None else _of_file(path)
    sources: dict[Any, str] = dict.fromkeys(fields, str(path))
    given = [_setting(text) for text in settings]
    if micro_batch is not None:
        given.append(("micro_batch", micro_batch, MICRO_BATCH))
    for name, value, source in given:
        if sources.get(name, str(path)) != str(path):
            raise UserError(f"{source}: {name} is given by {sources[name]} already; give it once")
        fields[name], sources[name] = value, source
    fields.setdefault("micro_batch", 1)
    # What is wrong with several fields together is said of all that gave one.
    where = ", ".join(dict.fromkeys(sources.values())) or SETTING
    return from_mapping(Recipe, fields, where, sources)


def _of_file(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    data = load_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe must be a mapping of fields, got {type(data).__name__}")
    return data


def _setting(text: str) -> tuple[str, object, str]:
    """Field, value and source of one `--set`."""
    name, separator, value = text.partition("=")
    name = name.strip()
    if not separator:
        raise UserError(f"{SETTING} {shown(text)}: write it as field=value, like precision=bf16-autocast")
    try:
        return name, load_yaml(value, ""), f"{SETTING} {name}"
    except UserError:
        raise UserError(
            f"{SETTING} {name}: {shown(value)} is not YAML; write a word, a number, true or false"
        ) from None
