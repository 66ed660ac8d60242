"""Arguments of `stream` and its like."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.session.session import Session
from engine_cases import PROMPT
from sentences import refuses


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": None},
        {"prompt": b"abc"},
        {"prompt": "a\ud800"},
        {"prompt": [1, 2.5]},
        {"prompt": np.zeros((2, 2))},
        {"prompt": [True]},
        {"prompt": {1: 2}},
        {"prompt": 7},
        {"max_tokens": 1.5},
        {"max_tokens": "x"},
        {"max_tokens": True},
        {"max_tokens": -1},
        {"stop": b"abc"},
        {"stop": ["a", None]},
        {"stop": 3},
        {"stop": ""},
        {"stop": ["\udc00"]},
        {"sampling": {"temperature": 1}},
        {"sampling": 0},
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_at_once(
    session: Session, request_: dict[str, object]
) -> None:
    with refuses(UsageError):
        session.stream(**({"prompt": PROMPT} | request_))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [None, b"abc", "\ud800", 3])
def test_what_is_no_text_is_not_encoded(session: Session, text: object) -> None:
    with refuses(UsageError):
        session.encode(text)  # type: ignore[arg-type]


def test_one_stop_string_is_a_list_of_one(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=9, stop="cd").text == "ab"


def test_no_stop_strings_may_be_none(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=2, stop=None).text == "ab"  # type: ignore[arg-type]
