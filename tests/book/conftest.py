"""The sample book, copied and rendered once; `fixtures/sample` uses every part of the book's syntax."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from efficient_training.book.preview import render_preview

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).parent / "fixtures" / "sample"


def copy_sample(folder: Path) -> Path:
    """A copy of the sample book in `folder`, with the repository's own filter and assets."""
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("_book", "_build"))
    for name in ("_extensions", "assets"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the sample book to be changed by a test."""
    return copy_sample(tmp_path / "sample")


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the rendered sample book; not to be changed."""
    project = copy_sample(tmp_path_factory.mktemp("book") / "sample")
    return render_preview(project, project / "_book").parent


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the rendered book itself, of this repository's sources; not to be changed."""
    project = tmp_path_factory.mktemp("book") / "project"
    project.mkdir()
    for name in ("_extensions", "assets", "chapters", "notebooks"):
        shutil.copytree(ROOT / name, project / name)
    for name in ("_quarto.yml", "index.qmd"):
        shutil.copyfile(ROOT / name, project / name)
    return render_preview(project, project / "_book").parent


Edit = Callable[[str, str, str], None]


@pytest.fixture
def edit(sample: Path) -> Edit:
    """Replaces a piece of a file of the copied book, which must be there."""

    def replace(name: str, old: str, new: str) -> None:
        path = sample / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return replace
