import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_training import project as places
from efficient_training.errors import UserError

NAMES = ["01-memory", "02-precision", "03-checkpointing", "04-accumulation", "13-memory-limits"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("3", "03-checkpointing"),
        ("03", "03-checkpointing"),
        ("03…", "03-checkpointing"),
        ("03-check", "03-checkpointing"),
        ("checkpointing", "03-checkpointing"),
        ("Accum", "04-accumulation"),
        ("memory", "01-memory"),
        ("notebooks/02-precision.ipynb", "02-precision"),
        ("13", "13-memory-limits"),
    ],
)
def test_a_notebook_is_called_by_number_slug_or_name(word: str, name: str) -> None:
    assert places.select(NAMES, [word]) == [name]


def test_notebooks_come_in_the_books_order_and_once() -> None:
    assert places.select(NAMES, ["4", "memory", "accumulation"]) == ["01-memory", "04-accumulation"]
    assert places.select(NAMES, []) == NAMES


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("7", "--notebook 7: no such notebook; known: 01-memory, "),
        ("mem", "calls several notebooks; known: 01-memory, 13-memory-limits"),
        ("", "no such notebook"),
    ],
)
def test_a_word_that_calls_none_or_several_is_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        places.select(NAMES, [word])


def test_badly_named_notebooks_are_refused(project: Any) -> None:
    project.notebook("01-memory", [])
    assert list(places.notebooks(project.root)) == ["01-memory"]
    other = project.notebook("01-again", [])
    with pytest.raises(UserError, match=r"notebooks/01-memory\.ipynb: the number 01 is also that of 01-again"):
        places.notebooks(project.root)
    other.rename(other.with_name("Untitled.ipynb"))
    with pytest.raises(UserError, match=r"notebooks/Untitled\.ipynb: a notebook is called NN-slug\.ipynb"):
        places.notebooks(project.root)


def test_the_root_is_found_upward(project: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    inside = project.root / "results/x/y"
    inside.mkdir(parents=True)
    assert places.find_root(inside) == project.root
    (inside / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert places.find_root(inside) == project.root
    (inside / "_quarto.yml").touch()
    assert places.find_root(inside) == project.root, "an assembled edition is no root"
    (inside / "environments").mkdir()
    assert places.find_root(inside) == inside
    with pytest.raises(UserError, match="not inside the efficient-training project"):
        places.find_root(tmp_path_factory.mktemp("elsewhere"))


@pytest.mark.parametrize("name", ["A", "", ".", "..", "a/b", "../x", "-a", "a b", "é", "a" * 65, "a\n"])
def test_bad_edition_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="an edition's name has up to 64"):
        places.check_edition_name(name)


@given(st.text(max_size=300), st.sampled_from(["cpu", "gpu", "hopper", "cluster"]))
def test_the_default_name_is_a_valid_one_whatever_the_host_is_called(host: str, tier: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.node", lambda: host)
        name = places.default_edition_name(tier)
    assert places.check_edition_name(name) == name
    assert re.fullmatch(rf"[a-z0-9-]+-{tier}", name)
    assert name != places.REFERENCE


def test_places_of_editions() -> None:
    root = Path("root")
    assert places.edition_folder(root, "reference") == root / "notebooks"
    assert places.edition_folder(root, "a.b") == root / "results/a.b"
