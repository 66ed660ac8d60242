"""Runs over files of requests, with models that are known by heart."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edgespec.batch.answered import Answered
from edgespec.batch.batch_run import MAX_MODEL_FAILURES, BatchRun, starting
from edgespec.batch.lines import numbered_lines, parse_answer
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled, EdgespecError
from edgespec.session.session import Session
from engine_cases import counting
from fake_model import FakeModel
from sentences import refuses
from session_cases import holds_passes, open_session, until

Write = Callable[[bytes], None]


def request(name: str, **body: Any) -> dict[str, Any]:
    body = {"prompt": [1, 2], "max_tokens": 3} | body
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def batch(
    session: Session,
    lines: list[dict[str, Any]],
    write: Write,
    earlier: Answered | None = None,
    n: int = 1,
) -> BatchRun:
    file = io.BytesIO("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    numbered = numbered_lines(file, 10_000)
    start = starting(Completions(session))
    return BatchRun(start, numbered, write, session.cancel, earlier or Answered(), n)


@pytest.mark.parametrize("n", [1, 3])
def test_every_request_gets_one_answer(n: int) -> None:
    requests = [request(f"r{i}", prompt=[i % 5], max_tokens=1 + i % 4) for i in range(20)]
    written: list[bytes] = []
    with open_session(counting(n_texts=n), counting(n_texts=n)) as session:
        counts = batch(session, requests, written.append, n=n).run()
        alone = [session.create_completion(**r["body"])["choices"] for r in requests]
    answers = {line["custom_id"]: line for line in map(json.loads, written)}
    assert (counts.answered, counts.failed, len(written)) == (20, 0, 20)
    for asked, choices in zip(requests, alone, strict=True):
        response = answers[asked["custom_id"]]["response"]
        assert (response["status_code"], response["body"]["choices"]) == (200, choices)
        assert response["request_id"] == response["body"]["id"]


def test_bad_lines_get_errors_and_the_others_go_on() -> None:
    lines = [
        request("good"),
        {"custom_id": "no url"},
        request("field", tempratur=1),
        request("long", prompt=[1] * 600),
        request("good"),
        request("last"),
    ]
    written: list[bytes] = []
    with open_session(counting()) as session:
        counts = batch(session, lines, written.append).run()
    answers = [json.loads(line) for line in written]
    assert (counts.answered, counts.failed) == (6, 4)
    assert [a["response"] and a["response"]["status_code"] for a in answers] == (
        [200, None, 400, 400, None, 200]
    )
    assert [a["error"] and a["error"]["line"] for a in answers] == [None, 2, None, None, 5, None]
    assert answers[4]["custom_id"] is None  # whoever joins by it keeps the first one's answer
    assert "'good' is that of an earlier line" in answers[4]["error"]["message"]


def test_what_was_answered_is_skipped_and_counted() -> None:
    lines = [request("a"), request("b", best_of=9), {"custom_id": "c"}, request("d"), request("a")]
    written: list[bytes] = []
    with open_session(counting()) as session:
        batch(session, lines, written.append).run()
        for n_kept in range(6):
            earlier = Answered(a for line in written[:n_kept] if (a := parse_answer(line)))
            again: list[bytes] = []
            counts = batch(session, lines, again.append, earlier).run()
            assert (counts.skipped, counts.answered) == (n_kept, 5 - n_kept)
            assert counts.failed + counts.skipped_failed == 3
            assert [named(line) for line in written[:n_kept] + again] == (
                [named(line) for line in written]
            )


def named(line: bytes) -> Any:
    content = json.loads(line)
    return content["custom_id"], content["error"]


def test_one_text_that_fails_has_its_own_error_and_is_tried_again() -> None:
    target = counting()

    def fail(model: FakeModel) -> None:
        if len(written) == 1:
            raise EdgespecError("the disk is gone")

    target.hook = fail
    written: list[bytes] = []
    with open_session(target) as session:
        counts = batch(session, [request(name) for name in "abc"], written.append).run()
    assert (counts.answered, counts.failed) == (3, 1)
    answers = [json.loads(line)["response"] for line in written]
    assert [answer["status_code"] for answer in answers] == [200, 500, 200]
    assert answers[1]["body"]["error"]["message"] == "the disk is gone"
    earlier = Answered(a for line in written if (a := parse_answer(line)))
    again: list[bytes] = []
    with open_session(counting()) as session:
        batch(session, [request(name) for name in "abc"], again.append, earlier).run()
    assert [named(line) for line in again] == [("b", None)]


def test_a_model_that_only_fails_ends_the_run() -> None:
    target = counting()

    def fail(model: FakeModel) -> None:
        raise EdgespecError("the disk is gone")

    target.hook = fail
    written: list[bytes] = []
    with open_session(target) as session:
        run = batch(session, [request(f"r{i}") for i in range(20)], written.append)
        with refuses(EdgespecError):
            run.run()
    assert len(written) == MAX_MODEL_FAILURES


@pytest.mark.parametrize("n", [1, 2])
def test_stopping_writes_nothing_of_what_is_under_way(n: int) -> None:
    target = counting(n_texts=n)
    begun, _ = holds_passes(target)
    written: list[bytes] = []
    with open_session(target) as session:
        run = batch(session, [request(f"r{i}") for i in range(4)], written.append, n=n)
        stopper = threading.Thread(target=lambda: (begun.wait(60), run.stop()))
        stopper.start()
        with pytest.raises(Cancelled):
            run.run()
        stopper.join()
        assert not written
        target.hook = None
        assert session.generate([1, 2], max_tokens=2).tokens  # nothing is left in the session


def test_a_pipe_that_gives_nothing_more_keeps_no_run_from_stopping() -> None:
    waiting, release = threading.Event(), threading.Event()

    def lines() -> Any:
        yield 1, json.dumps(request("a")).encode()
        waiting.set()
        release.wait(60)

    written: list[bytes] = []
    with open_session(counting()) as session:
        start = starting(Completions(session))
        run = BatchRun(start, lines(), written.append, session.cancel, Answered(), 2)
        failure: list[BaseException] = []

        def go() -> None:
            try:
                run.run()
            except Cancelled as error:
                failure.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        assert waiting.wait(60)
        until(lambda: bool(written))
        run.stop()
        thread.join(60)
        assert failure
        release.set()
