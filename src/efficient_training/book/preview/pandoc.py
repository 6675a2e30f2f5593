"""Calls of pandoc, one process each, and what their messages mean."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pypandoc

from .cells import Problems
from .project import Page, Project, source_lines

HERE = Path(__file__).parent
READER = "markdown-native_divs-native_spans-yaml_metadata_block"
LABEL = re.compile(r"@([A-Za-z0-9_:.#$%&+?<>~/-]+)")
CONTENTS_ID = re.compile(r'(<a href="#[^"]*") id="toc-[^"]*"')
NAMED = re.compile(r"(?:\b(?:called|picture|link|label) |^(?=\w+(?:\.\w+)+: ))([^\s:]\S*[^\s:])")
MESSAGE = re.compile(r"\[(?:WARNING|ERROR)\]\s*")


@dataclass(frozen=True)
class Work:
    """One page under way: where its files for pandoc stand, and which project it is of."""

    project: Project
    page: Page
    folder: Path

    @property
    def stem(self) -> str:
        """A name for the page's files, unique in the folder."""
        return self.page.href.replace("/", "-")

    def put(self, suffix: str, data: object) -> Path:
        """Write `data` as JSON for pandoc to read; returns the file."""
        path = self.folder / f"{self.stem}.{suffix}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return path


@cache
def executable() -> str:
    """The pandoc of pypandoc_binary."""
    return str(pypandoc.get_pandoc_path())


def parse(work: Work, text: str, problems: Problems) -> tuple[str, Mapping[str, Any]]:
    """First pass: the page's document as pandoc JSON, values bound and everything numbered, and its labels."""
    filters = [HERE / "embed.lua", *work.project.filters, HERE / "structure.lua", HERE / "number.lua"]
    output = run(work, ["--from", READER, "--to", "json", *lua(filters)], text, problems)
    if not output:
        return "", {}
    return output, json.loads(json.loads(output)["meta"]["preview"]["c"])


def write(work: Work, document: str, variables: Mapping[str, object], problems: Problems) -> str:
    """Second pass: references and citations resolved, the whole page as HTML."""
    project = work.project
    defaults = work.put(
        "defaults",
        {
            "from": "json",
            "to": "html5",
            "standalone": True,
            "template": str(HERE / "theme" / "page.html"),
            "html-math-method": {"method": "katex"},
            "toc": True,
            "toc-depth": project.toc_depth,
            "wrap": "none",
            "email-obfuscation": "none",
            "metadata": {"lang": project.language, "link-citations": True, "pagetitle": variables["pagetitle"]},
            "variables": variables,
        },
    )
    bibliography = [f"--bibliography={path}" for path in project.bibliography]
    arguments = ["--defaults", str(defaults), *lua([HERE / "resolve.lua"]), "--citeproc", *bibliography]
    # The table of contents stands twice on the page, for wide and for narrow windows; ids must not.
    return CONTENTS_ID.sub(r"\1", run(work, arguments, document, problems))


def to_html(markdown: str) -> str:
    """A piece of Markdown from the project file as HTML."""
    arguments = [executable(), "--from", "markdown-raw_html-raw_attribute", "--to", "html5", "--wrap", "none"]
    return subprocess.run(arguments, input=markdown, capture_output=True, encoding="utf-8", check=True).stdout


def lua(filters: Sequence[Path]) -> list[str]:
    """The arguments that make pandoc run `filters`, in order."""
    return [f"--lua-filter={path}" for path in filters]


def run(work: Work, arguments: Sequence[str], text: str, problems: Problems) -> str:
    """Run pandoc on `text` where the page stands; its complaints become problems. Returns "" where it failed."""
    environment = {
        **os.environ,
        "QUARTO_PROJECT_DIR": str(work.project.root),
        "QUARTO_DOCUMENT_FILE": str(work.page.source),
        "PREVIEW_PAGE": str(work.folder / f"{work.stem}.page.json"),
        "PREVIEW_BOOK": str(work.folder / "book.json"),
    }
    done = subprocess.run(
        [executable(), *arguments],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=work.page.source.parent,
        check=False,
    )
    for line in done.stderr.splitlines():
        _complaint(line.strip(), work.page, problems)
    if done.returncode and not done.stderr.strip():
        problems.add(work.page.source, f"pandoc failed with exit code {done.returncode}")
    return "" if done.returncode else done.stdout


def _complaint(line: str, page: Page, problems: Problems) -> None:
    """One line of pandoc's or a filter's messages, with the line of the page that it is about where that is known."""
    what = MESSAGE.sub("", line)
    own = f"{page.source}: "
    if not what or what.startswith(("Error running filter", "stack traceback", "Running filter")):
        return
    if what.startswith(own):
        what = what.removeprefix(own)
        if line.startswith("[WARNING]"):  # another machine's edition may lack a value; the page shows where
            problems.warn(page.source, what)
            return
    what = what.removeprefix("PROBLEM\t")
    if missing := re.search(r"citation (\S+) not found", what):
        what = f"no entry in the bibliography for @{missing[1]}"
    problems.add(locate(page, what), what)


def locate(page: Page, what: str) -> str:
    """`path:line` of the first place in the page that the message names (a label, a record), else the path."""
    text = page.source.read_text(encoding="utf-8")
    printed = re.match(r"(\S+) is printed as it stands", what)
    words = [printed[1]] if printed else LABEL.findall(what) or NAMED.findall(what)
    for word in words:
        for number, line in source_lines(text):
            if re.search(rf"{re.escape(word)}(?![\w-])", line):
                return f"{page.source}:{number}"
    return str(page.source)
