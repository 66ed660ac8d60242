"""Output of a command without its figures, held against a file of tests/cli/golden.

`EDGESPEC_GOLDEN=write pytest tests/cli/test_golden.py` writes the files anew.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.models.embedded import embedded_pair

FOLDER = Path(__file__).with_name("golden")
_MODELS = embedded_pair().target.parent
_FIGURE = re.compile(r"(?<![\w.#-])[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?![\w.]*\w)")
_HASH = re.compile(r"\b[0-9a-f]{12,64}\b")


def hold(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """Run a command and compare its exit code, stdout and stderr with the file of this name."""
    capsys.readouterr()
    exit_code = command_line.main(list(words))
    out, err = capsys.readouterr()
    parts = [f"exit code {exit_code}", *_part("stdout", out, place), *_part("stderr", err, place)]
    found, path = "\n".join(parts) + "\n", FOLDER / f"{name}.txt"
    if os.environ.get("EDGESPEC_GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text()


def _part(title: str, text: str, place: Path) -> list[str]:
    if not text:
        return []
    text = text.replace(str(place), "<tmp>").replace(str(_MODELS), "<models>")
    return [f"--- {title}", *map(_line, text.splitlines())]


def _line(line: str) -> str:
    if line.startswith("{"):
        return json.dumps(shape(json.loads(line)), indent=1, sort_keys=True)
    return without_figures(line)


def without_figures(line: str) -> str:
    """The line with `#` for numbers and checksums, and one blank before each."""
    line = _FIGURE.sub("#", _HASH.sub("#", line))
    return re.sub(r" +#", " #", line).rstrip()


def shape(value: Any) -> Any:
    """Keys of a JSON value with the types of their values; of a list, those of its entries."""
    match value:
        case dict():
            return {name: shape(entry) for name, entry in value.items()}
        case list():
            shapes = [shape(entry) for entry in value]
            return [one for at, one in enumerate(shapes) if one not in shapes[:at]]
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case None:
            return None
    return "text"
