import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efficient_training.claims import Claim
from efficient_training.display import METADATA_KEY
from efficient_training.editions import edition_names, load_edition, read_notebook
from efficient_training.errors import UserError
from efficient_training.records import Record

PEAK = Record("memory.peak", 1536, "MiB", "measured")
LOWER = Claim("memory.lower", "the peak is lower", "hardware", False, ("memory.peak",), "memory.peak = 1,536 MiB")


def shown(item: Record | Claim, **changes: Any) -> dict[str, Any]:
    """The output of the cell that makes `item`, with some of its fields changed."""
    return {
        "output_type": "display_data",
        "data": {"text/plain": item.text},
        "metadata": {METADATA_KEY: {**item.to_json(), **changes}},
    }


@pytest.fixture
def edition(project: Any) -> Callable[..., Path]:
    """Writes an edition called "theirs" with one notebook, spoiled as its arguments say."""
    project.notebook("01-memory", ["pass"])
    project.notebook("02-precision", ["pass"])

    def write(*outputs: dict[str, Any], **fields: Any) -> Path:
        path: Path = project.edition("theirs", "01-memory", {"c1": list(outputs)}, **fields)
        return path

    return write


def test_an_edition_gives_records_claims_and_where_they_stand(project: Any, edition: Any) -> None:
    edition(shown(PEAK), shown(LOWER))
    project.edition("theirs", "02-precision", {"c1": [shown(Record("precision.error", 0.5, "ratio", "derived"))]})
    loaded = load_edition(project.root, "theirs")
    assert loaded.name == "theirs"
    assert loaded.records["memory.peak"] == PEAK
    assert loaded.claims["memory.lower"] == LOWER
    assert loaded.homes == {
        "memory.peak": "01-memory",
        "memory.lower": "01-memory",
        "precision.error": "02-precision",
    }
    provenance = loaded.notebooks["01-memory"].provenance
    assert provenance is not None
    assert (provenance["tier"], provenance["date"]) == ("cpu", "2026-01-31")
    assert edition_names(project.root) == ["reference", "theirs"]


def test_the_reference_holds_what_was_executed(project: Any) -> None:
    project.notebook("01-memory", ["pass"])
    assert load_edition(project.root, "reference").notebooks == {}
    project.edition("reference", "01-memory", {"c1": [shown(PEAK)]})
    assert load_edition(project.root, "reference").records == {"memory.peak": PEAK}


def test_a_notebook_that_the_book_does_not_have_is_not_read(project: Any, edition: Any) -> None:
    edition(shown(PEAK))
    (project.root / "results/theirs/09-gone.ipynb").write_text("{ not even JSON")
    loaded = load_edition(project.root, "theirs")
    assert loaded.unknown == ("09-gone.ipynb",)
    assert list(loaded.notebooks) == ["01-memory"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "1536"}, "invalid record at value: '1536' is not of type"),
        ({"value": True}, "invalid record at value: True is not of type"),
        ({"value": None}, "invalid record at reason: None is not of type 'string'"),
        ({"value": 10**400}, "too large"),
        ({"unit": "furlong"}, "unknown unit 'furlong'"),
        ({"unit": "<b>"}, "unknown unit '<b>'"),
        ({"kind": "guessed"}, "invalid record at kind"),
        ({"name": "memory"}, "invalid record at name"),
        ({"name": "memory.peak\n"}, "must be lower-case words|invalid record at name"),
        ({"name": "memory.<script>"}, "invalid record at name"),
        ({"name": "memory." + "x" * 200}, "invalid record at name"),
        ({"tolerance": {"relative": -1, "absolute": 0}}, "invalid record at tolerance/relative"),
        ({"tolerance": 0.1}, "invalid record at tolerance"),
        ({"conditions": {"a": {"b": 1}}}, "invalid record at conditions/a"),
        ({"conditions": {str(i): 1 for i in range(41)}}, "invalid record at conditions"),
        ({"html": "<b>"}, "'html' was unexpected"),
        ({"reason": "x" * 501}, "invalid record at reason"),
        ({"type": "note"}, "an output carries 'note', expected a record or a claim"),
        ({"conditions": {"a": "\u001b[31m"}}, r"holds the control character U\+001B"),
        ({"conditions": {"a": "\u202e"}}, r"holds the control character U\+202E"),
    ],
)
def test_a_hostile_record_is_named(project: Any, edition: Any, changes: dict[str, Any], message: str) -> None:
    path = edition(shown(PEAK, **changes))
    with pytest.raises(UserError, match=message) as caught:
        load_edition(project.root, "theirs")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held": "yes"}, "invalid claim at held"),
        ({"held": None}, "invalid claim at reason"),
        ({"scope": "somewhere"}, "invalid claim at scope"),
        ({"records": []}, "invalid claim at records"),
        ({"records": ["memory.other"]}, "the claim memory.lower rests on 'memory.other', which is no record there"),
        ({"name": "memory.peak"}, "the name 'memory.peak' stands for two figures"),
        ({"statement": ""}, "invalid claim at statement"),
    ],
)
def test_a_hostile_claim_is_named(project: Any, edition: Any, changes: dict[str, Any], message: str) -> None:
    edition(shown(PEAK), shown(LOWER, **changes))
    with pytest.raises(UserError, match=message):
        load_edition(project.root, "theirs")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"edition": "another"}, "says that it belongs to the edition 'another'"),
        ({"edition": "../x"}, "invalid provenance at edition"),
        ({"source": "abc"}, "invalid provenance at source"),
        ({"commit": "HEAD"}, "invalid provenance at commit"),
        ({"date": "yesterday"}, "invalid provenance at date"),
        ({"seconds": -1}, "invalid provenance at seconds"),
        ({"tier": "<b>"}, "invalid provenance at tier"),
        ({"machine": {}}, "invalid provenance at machine"),
        ({"versions": {"torch": 2}}, "invalid provenance at versions/torch"),
        ({"parameters": {"a": {"b": 1}}}, "invalid provenance at parameters/a"),
        ({"host": "x"}, "'host' was unexpected"),
    ],
)
def test_hostile_provenance_is_named(project: Any, edition: Any, fields: dict[str, Any], message: str) -> None:
    edition(shown(PEAK), **fields)
    with pytest.raises(UserError, match=message):
        load_edition(project.root, "theirs")


def html(path: Path) -> None:
    data = json.loads(path.read_text())
    data["cells"][2]["outputs"][0]["data"]["text/html"] = "<script>alert(1)</script>"
    path.write_text(json.dumps(data))


def without_provenance(path: Path) -> None:
    data = json.loads(path.read_text())
    del data["metadata"][METADATA_KEY]
    path.write_text(json.dumps(data))


def link(path: Path) -> None:
    target = path.with_name("elsewhere.json")
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def large(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(60 * 2**20)


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return spoil


def written(text: str | bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(text if isinstance(text, bytes) else text.encode()), None)[1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (html, "cell c1: output may not hold 'text/html'"),
        (without_provenance, "has no provenance; only what `efficient-training execute` made is an edition"),
        (link, "a link, no plain file, or larger than 50 MiB"),
        (pipe, "a link, no plain file"),
        (large, "a link, no plain file, or larger than 50 MiB"),
        (replaced('"value": 1536', '"value": NaN'), "NaN is no JSON"),
        (replaced('"value": 1536', '"value": -Infinity'), "-Infinity is no JSON"),
        (replaced('"value": 1536', '"value": 1e999'), "inf is not finite|invalid record at value"),
        (replaced('"value": 1536', '"value": 1, "value": 1536'), "the key 'value' is written twice"),
        (replaced('"value": 1536', '"value": ' + "9" * 5000), "not a notebook"),
        (written(""), "not a notebook"),
        (written(b"\xff\xfe"), "not a notebook"),
        (written("[" * 100_000), "not a notebook"),
        (replaced('"nbformat_minor"', '"x": ' + "[" * 900 + "]" * 900 + ', "nbformat_minor"'), "nested deeper than 50"),
        (replaced('"nbformat_minor": 5', '"nbformat_minor": "5"'), "not a notebook of format 4"),
        (written("[]"), "not a notebook of format 4"),
        (written('{"nbformat": 3, "metadata": {}, "cells": []}'), "not a notebook of format 4"),
        (written('{"nbformat": 4, "metadata": [], "cells": []}'), "not a notebook of format 4"),
        (written('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [1]}'), "not a notebook of format 4"),
    ],
)
def test_a_hostile_file_is_named(project: Any, edition: Any, spoil: Callable[[Path], None], message: str) -> None:
    path = edition(shown(PEAK))
    spoil(path)
    with pytest.raises(UserError, match=message) as caught:
        load_edition(project.root, "theirs")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_name_stands_for_one_figure_over_the_whole_edition(project: Any, edition: Any) -> None:
    edition(shown(PEAK))
    project.edition("theirs", "02-precision", {"c1": [shown(PEAK)]})
    with pytest.raises(UserError, match=r"02-precision\.ipynb: the name 'memory\.peak' stands in 01-memory\.ipynb too"):
        load_edition(project.root, "theirs")


@pytest.mark.parametrize("name", ["none", "reference/../theirs", "..", "/etc"])
def test_what_is_no_edition_is_refused(project: Any, edition: Any, name: str) -> None:
    edition(shown(PEAK))
    with pytest.raises(UserError, match=r"no such edition; known: reference, theirs|an edition's name has up to 64"):
        load_edition(project.root, name)


def test_a_folder_that_is_a_link_is_no_edition(project: Any, edition: Any) -> None:
    edition(shown(PEAK))
    (project.root / "results/linked").symlink_to(project.root / "results/theirs")
    with pytest.raises(UserError, match="no such edition"):
        load_edition(project.root, "linked")
    assert edition_names(project.root) == ["reference", "theirs"]


def test_read_notebook_reads_one_file(edition: Any) -> None:
    path = edition(shown(PEAK), shown(LOWER))
    result = read_notebook(path)
    assert (result.path, result.records, result.claims) == (path, {"memory.peak": PEAK}, {"memory.lower": LOWER})
