"""The sentences of errors and notes that tests expect: each stands once, in `sentences.json`.

`make sentences` writes them anew; the diff of that file shows which ones changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Error = TypeVar("Error", bound=BaseException)
FILE = Path(__file__).with_name("sentences.json")
folder = Path()
"""The folder of this run's temporary files, set by `conftest.py`."""
_n_held: Counter[str] = Counter()
"""The number of sentences that each test has held."""


@contextmanager
def refuses(kind: type[Error], figures: bool = True) -> Iterator[pytest.ExceptionInfo[Error]]:
    """Expect an error, as `pytest.raises` does, with the sentence of this test.

    Without `figures` its numbers may be any, as those of memory that llama.cpp takes. Another
    library's words, from whose error it was raised, may be any, too.
    """
    with pytest.raises(kind) as caught:
        yield caught
    text, cause = str(caught.value), caught.value.__cause__
    is_ours = type(cause) in (ValueError, type(None)) or "edgespec" in type(cause).__module__
    if not is_ours:
        text = text.replace(str(cause), "<cause>")
    hold_sentence(text, figures)


def hold_sentence(text: str, figures: bool = True) -> None:
    """Compare a text with the next one of this test, whatever folders and ports are named."""
    text = re.sub(rf"{re.escape(str(folder))}(/popen-gw\d+)?/\w+", "<tmp>", text)
    text = text.replace(str(FILE.parents[1]), "<here>").replace(sys.executable, "<python>")
    text = text.replace("\0", "`")  # a setting in a note
    text = re.sub(r"127\.0\.0\.1:\d+", "<address>", text)
    text = text if figures else re.sub(r"(?<![\w.])\d[\d,.]*", "#", text)
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    at = _n_held[test]
    _n_held[test] += 1
    sentences = json.loads(FILE.read_text())
    if os.environ.get("EDGESPEC_GOLDEN") == "write":
        sentences[test] = [*sentences.get(test, [])[:at], text]
        FILE.write_text(json.dumps(sentences, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
    expected = sentences.get(test, [])[at:][:1]
    assert [text] == expected, f"{[text]} is not {expected}: `make sentences` writes it anew"


if __name__ == "__main__":
    FILE.write_text("{}")
    os.environ["EDGESPEC_GOLDEN"] = "write"
    functions = [
        f"{path}::{text.partition('(')[0]}"
        for path in sorted(FILE.parent.rglob("test_*.py"))
        for text in re.split(r"^def ", path.read_text(), flags=re.MULTILINE)
        if text.startswith("test_") and re.search(r"(refuses|hold_sentence)\(", text)
    ]
    sys.exit(pytest.main(functions))
