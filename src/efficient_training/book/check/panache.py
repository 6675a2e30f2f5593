"""The findings of panache, a linter of Quarto's Markdown, where it is installed.

Only rules that find mistakes, not taste, and that know enough: its own check of cross-references knows nothing of
embedded cells, and that of citations is done here too.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .problems import Problem

RULES = re.compile(
    r"undefined-footnote-id|unused-footnote-id|duplicate-.*|stray-fenced-div-markers|heading-eaten-attrs"
    r"|footnote-ref-in-footnote-def|footnote-swallowed-by-bracket|bibliography-parse-error"
    r"|math-(?:unclosed|unexpected|mismatched).*|html-unclosed-attribute"
)
FINDING = re.compile(r"(?P<path>.+?):(?P<line>\d+):\d+: \w+\[(?P<rule>[\w-]+)\]: (?P<message>.*)")


def executable() -> str | None:
    """The panache beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("panache")
    return str(beside) if beside.is_file() else shutil.which("panache")


def check_with_panache(root: Path, names: Sequence[str]) -> Iterator[Problem]:
    """What panache finds in these pages, by the rules that matter; nothing where it is not installed."""
    program = executable()
    if program is None or not names:
        return
    command = [program, "lint", "--isolated", "--no-cache", "--no-color", "--message-format", "short", *names]
    done = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=False)
    for line in (done.stdout + done.stderr).splitlines():
        match = FINDING.fullmatch(line)
        if match and RULES.fullmatch(match["rule"]):
            path = Path(match["path"])
            name = path.relative_to(root) if path.is_absolute() else path
            yield Problem(name, int(match["line"]), f"{match['message']} (panache: {match['rule']})")
