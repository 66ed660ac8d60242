"""Lines of batch files: what is a request, and what an error says."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from edgespec.batch.answered import Answered
from edgespec.batch.lines import (
    LineError,
    answer_line,
    error_key,
    error_line,
    is_begun_answer,
    numbered_lines,
    parse_answer,
    parse_line,
    request_key,
)
from sentences import refuses


def line(**changes: Any) -> bytes:
    fields = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "x"},
    } | changes
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


def test_the_rest_of_a_line_that_is_too_long_is_not_taken_for_another() -> None:
    file = io.BytesIO(b"x" * 25 + b"\nshort\n" + b"y" * 10 + b"\n")
    assert list(numbered_lines(file, 10)) == [(1, None), (2, b"short\n"), (3, b"y" * 10 + b"\n")]


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_a_line_is_a_request(ending: str) -> None:
    request = parse_line(line() + ending.encode())
    assert request.custom_id == "a"
    assert request.body["prompt"] == "x"


@pytest.mark.parametrize(
    ("bad", "custom_id"),
    [
        (b"{", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b"[]", None),
        (line(custom_id=...), None),
        (line(custom_id=7), None),
        (line(custom_id="x" * 600), None),
        (line(method="GET"), "a"),
        (line(url=...), "a"),
        (line(url="/v1/embeddings"), "a"),
        (line(body=...), "a"),
        (line(priority=1), "a"),
        (line(body={"prompt": "x", "stream": True}), "a"),
    ],
)
def test_a_line_that_holds_no_request_says_why(bad: bytes, custom_id: Any) -> None:
    with refuses(LineError) as refusal:
        parse_line(bad)
    assert refusal.value.custom_id == custom_id
    written = json.loads(error_line(3, refusal.value))
    assert (written["custom_id"], written["response"]) == (custom_id, None)
    assert written["error"] == {
        "code": refusal.value.code,
        "message": str(refusal.value),
        "line": 3,
    }


def test_what_was_written_is_recognised_by_the_next_run() -> None:
    error = LineError("no JSON", "invalid_json")
    earlier = Answered(
        answer
        for written in (
            answer_line("good", 200, {"id": "cmpl-1", "choices": []}),
            answer_line("refused", 400, {"error": {}}),
            answer_line("failed", 500, {"error": {}}),
            error_line(3, error),
        )
        if (answer := parse_answer(written))
    )
    keys = [request_key(name) for name in ("good", "refused", "failed")] + [error_key(3, error)]
    assert [key in earlier.answered for key in keys] == [True, True, False, True]
    assert [key in earlier.refused for key in keys] == [False, True, False, True]


@pytest.mark.parametrize("foreign", [b"{}", b"[]", b"x", line(), b'{"error": 3}', b"null"])
def test_other_files_are_not_taken_for_answers(foreign: bytes) -> None:
    assert parse_answer(foreign) is None
    assert not is_begun_answer(foreign + b" ")


@pytest.mark.parametrize(
    "damage",
    [
        '"custom_id": "a", "error": null, "response": {"status_code": 1e999}',
        '"custom_id": "\\ud800", "error": null, "response": {"status_code": 200}',
        '"error": {"line": 1e999, "code": "a", "message": "b"}',
        '"error": {"line": 1, "code": "a", "message": "\\ud800"}',
    ],
)
def test_damaged_answers_are_none(damage: str) -> None:
    """They had ended the next run with an unexpected error that named no line."""
    assert parse_answer(f'{{"id": "batch_req_a", {damage}}}'.encode()) is None
