"""Checking of data from outside against this package's JSON Schemas."""

import json
from functools import cache
from importlib.resources import files

import jsonschema

from .errors import UserError


def validate(data: object, schema: str, where: str) -> None:
    """Check `data` against `schema/<schema>.schema.json`; raises `UserError` naming the first fault."""
    fault = jsonschema.exceptions.best_match(validator(schema).iter_errors(data))
    if fault is not None:
        place = "/".join(str(part) for part in fault.absolute_path) or "the object"
        raise UserError(f"{where}: invalid {schema} at {place}: {fault.message[:200]}")


@cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    """The validator of one of this package's schemas."""
    text = files(__package__).joinpath("schema", f"{schema}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))
