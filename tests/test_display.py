from pathlib import Path
from typing import Any

import IPython.display
import pytest

from efficient_training.display import source

SCRIPT = """import math


@decorated
def area(radius):
    return math.pi * radius**2


def other():
    pass
"""


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        (None, "areas.py", f"```python\n{SCRIPT.strip()}\n```"),
        ("area", "areas.py", "```python\n@decorated\ndef area(radius):\n    return math.pi * radius**2\n```"),
        (None, "areas.yaml", f"```yaml\n{SCRIPT.strip()}\n```"),
    ],
)
def test_a_script_or_one_function_of_it_is_shown(
    name: str | None, file: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    (tmp_path / file).write_text(SCRIPT)
    source(tmp_path / file, name)
    assert shown[0]["text/markdown"] == expected


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "areas.py").write_text(SCRIPT)
    with pytest.raises(ValueError, match="no function or class 'volume'"):
        source(tmp_path / "areas.py", "volume")
