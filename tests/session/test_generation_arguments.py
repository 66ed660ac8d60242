"""Arguments of `stream` and its like."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.session.session import Session
from engine_cases import PROMPT


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt": None}, "the prompt must be text or a list of token ids, not None"),
        ({"prompt": b"abc"}, "the prompt must be text or a list of token ids, not b'abc'"),
        ({"prompt": "a\ud800"}, "half a character .* at position 1"),
        ({"prompt": [1, 2.5]}, r"2\.5"),
        ({"prompt": np.zeros((2, 2))}, "a token of the prompt must be a whole number"),
        ({"prompt": [True]}, "a token of the prompt must be a whole number, not True"),
        ({"prompt": {1: 2}}, "the prompt must be text or a list of token ids"),
        ({"prompt": 7}, "the prompt must be text or a list of token ids, not 7"),
        ({"max_tokens": 1.5}, r"max_tokens.*1\.5"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": b"abc"}, r"stop\[0\] must be text"),
        ({"stop": ["a", None]}, r"stop\[1\]"),
        ({"stop": 3}, "texts"),
        ({"stop": ""}, "not empty"),
        ({"stop": ["\udc00"]}, "half a character"),
        ({"sampling": {"temperature": 1}}, "SamplingParams"),
        ({"sampling": 0}, "SamplingParams"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_at_once(
    session: Session, request_: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        session.stream(**({"prompt": PROMPT} | request_))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [None, b"abc", "\ud800", 3])
def test_what_is_no_text_is_not_encoded(session: Session, text: object) -> None:
    with pytest.raises(UsageError, match="text"):
        session.encode(text)  # type: ignore[arg-type]


def test_one_stop_string_is_a_list_of_one(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=9, stop="cd").text == "ab"


def test_no_stop_strings_may_be_none(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=2, stop=None).text == "ab"  # type: ignore[arg-type]
