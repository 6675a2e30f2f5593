"""Choosing the renderer, editions side by side, and the server."""

import json
import socket
import stat
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from efficient_training.book.quarto import find_quarto, render_quarto
from efficient_training.book.render import render
from efficient_training.book.serve import make_server
from efficient_training.errors import UserError, UserErrors


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment with an empty folder, which is returned, as its PATH and as its `bin`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def program(folder: Path, version: str, on_render: str = "true") -> Path:
    """A program called quarto that tells `version`, and runs the shell code `on_render` when asked to render $2."""
    path = folder / "quarto"
    path.write_text(
        f'#!/bin/sh\nPATH=/usr/bin:/bin\nif [ "$1" = --version ]; then echo {version}; exit 0; fi\n{on_render}\n',
        encoding="utf-8",
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_no_quarto(bare: Path) -> None:
    assert find_quarto() == (None, "no quarto on the PATH or in this environment")


def test_quarto_on_the_path(bare: Path) -> None:
    path = program(bare, "1.10.3")
    assert find_quarto() == (path, "Quarto 1.10.3")


def test_quarto_in_the_environment(bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    path = program(bare, "1.7.0")
    assert find_quarto()[0] == path


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.6.42", "1.7 or newer"),
        ("none", "does not tell its version"),
        (r"; printf '\377\376'", "does not tell its version"),
    ],
)
def test_a_quarto_that_does_not_serve(bare: Path, version: str, reason: str) -> None:
    path = program(bare, version)
    found, why = find_quarto()
    assert found is None
    assert why.startswith(str(path))
    assert reason in why


def test_quarto_renders_where_it_is_found(bare: Path, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(bare, "1.7.1", 'mkdir "$2/_book" && echo "$@" > "$2/_book/index.html"')
    index = render(sample)
    assert index == sample / "_book" / "index.html"
    assert index.read_text(encoding="utf-8").split() == ["render", str(sample), "--to", "html"]
    assert capsys.readouterr().err == ""


def test_quarto_failing_is_told_in_its_own_words(bare: Path, sample: Path) -> None:
    quarto = program(bare, "1.7.1", 'echo "ERROR: the notebook is no notebook" >&2; echo "Stack trace:" >&2; exit 1')
    with pytest.raises(UserError) as caught:
        render_quarto(quarto, sample)
    assert str(caught.value) == (
        f"quarto render failed in {sample}: ERROR: the notebook is no notebook; "
        "`render --renderer preview` does without Quarto"
    )


def test_an_older_book_is_not_taken_for_what_quarto_rendered(bare: Path, sample: Path) -> None:
    (sample / "_book").mkdir()
    (sample / "_book" / "index.html").write_text("an older book", encoding="utf-8")
    with pytest.raises(UserError, match="quarto render wrote no"):
        render_quarto(program(bare, "1.7.1"), sample)


def test_what_quarto_says_need_not_be_utf_8(bare: Path, sample: Path) -> None:
    quarto = program(bare, "1.7.1", r"printf 'ERROR: \377 is no letter\n' >&2; exit 1")
    with pytest.raises(UserError, match="ERROR: \ufffd is no letter"):
        render_quarto(quarto, sample)


def test_what_quarto_only_warns_of_fails(bare: Path, sample: Path) -> None:
    warnings = "WARN: Unable to resolve crossref @fig-x\n[WARNING] Citeproc: citation nobody not found\nWARN: harmless"
    quarto = program(bare, "1.7.1", f"mkdir $2/_book; touch $2/_book/index.html; printf '%s' '{warnings}' >&2")
    with pytest.raises(UserErrors) as caught:
        render_quarto(quarto, sample)
    assert caught.value.problems == [
        f"{sample}: Unable to resolve crossref @fig-x",
        f"{sample}: Citeproc: citation nobody not found",
    ]


def test_the_preview_says_that_it_is_the_preview_and_why(
    bare: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render(sample) == sample / "_book" / "index.html"
    said = capsys.readouterr().err
    assert said == "rendering the preview with pandoc: no quarto on the PATH or in this environment\n"


def test_asking_for_quarto_where_there_is_none(bare: Path, sample: Path) -> None:
    with pytest.raises(UserError, match="no quarto on the PATH or in this environment; install Quarto, or render"):
        render(sample, renderer="quarto")


def test_an_edition_is_rendered_beside_the_reference(sample: Path) -> None:
    source = sample / "notebooks" / "01-sample.ipynb"
    (sample / "notebooks" / "sample.ipynb").rename(source)
    chapter = sample / "chapters" / "one.qmd"
    chapter.write_text(chapter.read_text(encoding="utf-8").replace("/sample.ipynb", "/01-sample.ipynb"), "utf-8")
    notebook = json.loads(source.read_text(encoding="utf-8"))
    about = notebook["metadata"]["efficient_training"]
    about.update(edition="big", tier="gpu", date="2026-12-01")
    about["machine"]["gpus"] = [{"name": "Example GPU", "memory_bytes": 80 * 2**30, "capability": "9.0"}] * 2
    claims = [output for cell in notebook["cells"] for output in cell.get("outputs", []) if "claim" in str(output)]
    assert claims
    for output in claims:
        data = output.get("metadata", {}).get("efficient_training", {})
        if data.get("name") == "one.faster":
            data.update(held=True, evidence="one.copy = 0.5 ms")
    tier = sample / "environments" / "gpu" / "tier.yml"
    tier.parent.mkdir(parents=True)
    tier.write_text("name: gpu\ntitle: One GPU\nrequires: {device: cuda}\nparameters: {}\n", encoding="utf-8")
    edition = sample / "results" / "big"
    edition.mkdir(parents=True)
    (edition / source.name).write_text(json.dumps(notebook), encoding="utf-8")

    reference = render(sample, renderer="preview")
    big = render(sample, edition="big", renderer="preview")
    assert reference == sample / "_book" / "index.html"
    assert big == sample / "_build" / "big" / "_book" / "index.html"
    ours, theirs = (index.parent.joinpath("chapters/one.html").read_text("utf-8") for index in (reference, big))
    assert "✗ not held here" in ours
    assert "✗ not held here" not in theirs
    landing = big.read_text(encoding="utf-8").replace("\xa0", " ")
    assert "Edition big: 2 × Example GPU (80 GiB), Example CPU with 2 cores" in landing
    assert "Edition big: " in theirs
    assert "Reference edition: Example CPU" in ours


# The server


@pytest.fixture
def address(rendered: Path) -> Iterator[str]:
    """The address of the rendered sample book, served."""
    with make_server(rendered, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{server.server_address[0]!s}:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_book_is_served_on_the_loopback_only(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{address}/chapters/one.html") as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert b"Activation checkpointing" in answer.read()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/../_quarto.yml")


def test_a_port_in_use(rendered: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"^port {port} is in use; choose another with --port$"):
            make_server(rendered, port)


def test_a_port_that_cannot_be(rendered: Path) -> None:
    with pytest.raises(UserError, match="cannot serve on port 70000"):
        make_server(rendered, 70000)


def test_no_rendered_book(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rendered book there; render it first"):
        make_server(tmp_path, 0)


def test_nothing_of_the_machine_stands_in_the_pages(rendered: Path) -> None:
    names = {str(Path.home()), str(rendered.parent), str(Path.cwd())} - {"/"}
    for path in rendered.rglob("*"):
        if path.suffix in {".html", ".js"}:
            text = path.read_text(encoding="utf-8")
            assert not [name for name in names if name in text], path.name
