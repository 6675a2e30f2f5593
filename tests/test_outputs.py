import base64
import struct
import zlib
from typing import Any

import pytest

from efficient_training import outputs
from efficient_training.errors import UserError
from efficient_training.outputs import MAX_TEXT, check_markdown, check_notebook

HARMLESS = [
    "| a | b |\n|:--|--:|\n| 1 | 2.50 |\n",
    "**bold** and *italic*, $x^2$, `code`, [a paper](https://example.org/paper), https://example.org",
    "# A heading\n\n- one\n- two\n\n1. first\n\n> quoted\n",
    "```python\nprint('<b>')\n```\n",
    '1 < 2 and 3 > 2, x<y, a & b, "quoted", 5 % of 10^9^',
    "| `<b>` | $\\frac{a}{b}$ |\n|---|---|\n| \\<b\\> | x |\n",
    "",
]

HARMFUL = [
    ("<b>bold</b>", "raw html"),
    ("text <script>alert(1)</script>", "raw html"),
    ("<div onclick='x'>\ntext\n</div>", "raw html|fenced div"),
    ("| a |\n|---|\n| <img src=x onerror=alert(1)> |\n", "raw html"),
    ("<!-- comment -->", "raw html"),
    ("```{=html}\n<script>alert(1)</script>\n```", "raw html"),
    ("`<b>`{=html}", "raw html"),
    ("\\input{/etc/passwd}", "raw tex"),
    ("![a picture](picture.png)", "image"),
    ("![](https://example.org/tracker.png)", "image"),
    ("[click](javascript:alert(1))", "link with a scheme other than https"),
    ("[click](JaVaScRiPt:alert(1))", "link with a scheme"),
    ("[click](http://example.org)", "link with a scheme"),
    ("[click](data:text/html;base64,AAAA)", "link with a scheme"),
    ("[click](../secret.html)", "link with a scheme"),
    ("[click][x]\n\n[x]: vbscript:x", "link with a scheme"),
    ("<javascript:alert(1)>", "raw html|link with a scheme"),
    ("<someone@example.org>", "link with a scheme"),
    ("[text]{.claim name='memory.x'}", "span"),
    ("[text]{onclick='alert(1)'}", "span"),
    ("::: {.content-hidden}\ntext\n:::", "fenced div"),
    ("# Heading {onclick='alert(1)'}", "attributes"),
    ("`code`{onmouseover='alert(1)'}", "attributes"),
    ("[a](https://example.org){onclick='x'}", "attributes"),
    ("```{.python onclick='x'}\n1\n```", "attributes"),
    ("| a |\n|---|\n| 1 |\n\n: A caption {#tbl-other}\n", "attributes"),
    ("{{< include /etc/passwd >}}", "shortcode"),
    ("---\ntitle: Mine\n---\n\ntext", "front matter"),
    ("as @someone2020 says", "citation"),
    ("$\\href{javascript:alert(1)}{x}$", "math that leaves math"),
    ("text[^1]\n\n[^1]: a note", "Note"),
    ("x" * (MAX_TEXT + 1), "the limit is"),
]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_markdown_passes(text: str) -> None:
    check_markdown(text, "here")


@pytest.mark.parametrize(("text", "fault"), HARMFUL, ids=[text[:30] for text, _ in HARMFUL])
def test_harmful_markdown_is_named(text: str, fault: str) -> None:
    with pytest.raises(UserError, match=f"^here: .*({fault})") as caught:
        check_markdown(text, "here")
    assert "\n" not in str(caught.value)


def test_markdown_that_takes_pandoc_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PANDOC_TIMEOUT_S", 1)
    with pytest.raises(UserError, match="here: Markdown may hold no such nesting"):
        check_markdown("[" * 50_000, "here")


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\0\0" * 2)) + chunk(b"IEND", b"")


def notebook(**output: Any) -> dict[str, Any]:
    shown = {"output_type": "display_data", "data": {"text/plain": "x"}, "metadata": {}, **output}
    if shown["output_type"] == "stream":
        shown = {"output_type": "stream", "name": "stdout", "text": output["text"]}
    cell: dict[str, Any] = {
        **{"cell_type": "code", "id": "fig-x", "metadata": {}, "source": "pass", "execution_count": None},
        "outputs": [shown],
    }
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}


def picture(data: bytes) -> dict[str, Any]:
    return notebook(data={"image/png": base64.encodebytes(data).decode()})


def test_what_the_runner_makes_passes() -> None:
    check_notebook(notebook(), "n.ipynb")
    check_notebook(notebook(output_type="stream", text=["a\n", "b\n"]), "n.ipynb")
    check_notebook(picture(png()), "n.ipynb")
    check_notebook(notebook(data={"text/markdown": ["| a |\n", "|---|\n", "| 1 |\n"], "text/plain": "x"}), "n.ipynb")


def spoiled(**changes: Any) -> dict[str, Any]:
    made = notebook()
    made["cells"][0].update(changes)
    return made


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (notebook(data={"text/html": "<b>"}), "cell fig-x: output may not hold 'text/html'"),
        (notebook(data={"image/svg+xml": "<svg/>"}), "output may not hold 'image/svg"),
        (notebook(data={"application/javascript": "x"}), "output may not hold 'application/javascript'"),
        (notebook(data={"text/latex": "$x$"}), "output may not hold 'text/latex'"),
        (notebook(metadata={"isolated": True}), "output metadata may not hold 'isolated'"),
        (picture(b"GIF89a" + b"\0" * 40), "cell fig-x: image/png is no PNG picture"),
        (picture(png()[:20]), "image/png is no PNG picture"),
        (picture(png()[:-5]), "image/png is no PNG picture"),
        (picture(png()[:31] + b"<b>" + png()[34:]), "image/png is no PNG picture"),
        (picture(png(20_000, 2)), "a picture of 20000 x 2 pixels"),
        (picture(png(0, 2)), "a picture of 0 x 2 pixels"),
        (picture(b"\0" * 9_000_000), "a picture of more than 8,000,000 bytes"),
        (notebook(data={"image/png": "<svg>"}), "image/png is not base64"),
        (notebook(data={"text/plain": "x" * (MAX_TEXT + 1)}), "a text of 200,001 characters"),
        (notebook(output_type="stream", text="\x1b]0;title\x07"), r"holds the control character U\+0007|U\+001B"),
        (notebook(data={"text/plain": "\ud800"}), r"holds the control character U\+D800"),
        (spoiled(outputs=[{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}]), "type 'error'"),
        (spoiled(outputs=[{"output_type": "display_data"}]), "not a valid notebook"),
        (spoiled(outputs="none"), "not a valid notebook"),
        (spoiled(cell_type="raw"), "not a valid notebook|only code and Markdown"),
        (spoiled(metadata={"slideshow": {}}), "cell metadata may not hold 'slideshow'"),
        (spoiled(id="a b"), "not a valid notebook"),
        (spoiled(id=None), "a cell has no id"),
        (
            {**notebook(), "cells": notebook()["cells"] * 2},
            "a cell has no id, or that of another",
        ),
        ({**notebook(), "metadata": {"jupytext": {}}}, "metadata may not hold 'jupytext'"),
        ({**notebook(), "extra": 1}, "not a valid notebook"),
    ],
)
def test_what_an_edition_may_not_hold_is_named_with_its_cell(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^n.ipynb.*({message})") as caught:
        check_notebook(bad, "n.ipynb")
    assert "\n" not in str(caught.value)
