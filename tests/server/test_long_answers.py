"""Answers that take long: headers at once, limits of the server, and its orderly end."""

import concurrent.futures
import json
import signal
import threading
import time
import weakref

import httpx
import pytest

from edgespec.completions.running_request import Completion
from server_running import running, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "def f(", "max_tokens": 1500, "temperature": 1.2, "seed": 3, "stream": True}
SHORT = {"prompt": "a", "max_tokens": 3}
PATIENCE_S = 60


def stream(address: str, asked: dict):
    return httpx.stream("POST", address + TEXT, json=asked, timeout=PATIENCE_S)


def chunks(lines: list[str]) -> list[dict]:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(one) for one in data]


@pytest.mark.slow
def test_who_waits_in_line_for_a_stream_has_its_headers(session):
    asked = LONG | {"ignore_eos": True, "max_tokens": 3000}
    with serving(session) as address, stream(address, asked) as first:
        lines = first.iter_lines()
        next(lines)
        with stream(address, SHORT | {"stream": True}) as second:
            assert second.status_code == 200
            assert httpx.get(f"{address}/health").json()["requests_in_progress"] == 2
            first.close()
            assert list(second.iter_lines())[-2] == "data: [DONE]"


@pytest.mark.costly
@pytest.mark.parametrize("is_stream", [False, True])
def test_who_waits_in_line_keeps_only_a_body(session, monkeypatch, is_stream):
    closed: list[weakref.ref[Completion]] = []
    close = Completion.close

    def note(completion: Completion) -> None:
        closed.append(weakref.ref(completion))
        close(completion)

    asked = LONG | {"ignore_eos": True, "max_tokens": 3000}
    with serving(session) as address, stream(address, asked) as first:
        lines = first.iter_lines()
        next(lines)
        monkeypatch.setattr(Completion, "close", note)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            body = SHORT | {"stream": is_stream}
            second = pool.submit(httpx.post, address + TEXT, json=body, timeout=PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not closed or closed[0]() is not None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert not second.done()
            first.close()
            assert second.result().status_code == 200


def test_no_answer_has_more_tokens_than_the_server_allows(session):
    with serving(session, max_tokens=5) as address:
        for asked, n in ((3, 3), (5, 5), (100, 5)):
            answer = httpx.post(
                address + TEXT, json={"prompt": "def f(", "max_tokens": asked}, timeout=PATIENCE_S
            ).json()
            assert answer["usage"]["completion_tokens"] == n
            assert answer["choices"][0]["finish_reason"] == "length"
        message = {"role": "user", "content": "write gcd"}
        answer = httpx.post(address + CHAT, json={"messages": [message]}, timeout=PATIENCE_S).json()
        assert answer["usage"]["completion_tokens"] <= 5


@pytest.mark.costly
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_ends_when_its_time_is_over(session, is_stream):
    asked = LONG | {"stream": is_stream, "ignore_eos": True, "max_tokens": 3000}
    with serving(session, time_limit=0.3) as address:
        began = time.monotonic()
        answer = httpx.post(address + TEXT, json=asked, timeout=PATIENCE_S)
        assert answer.status_code == 200
        whole = chunks(answer.text.splitlines())[-1] if is_stream else answer.json()
        assert whole["choices"][0]["finish_reason"] == "length"
        assert time.monotonic() - began < PATIENCE_S / 2
        # the next one has a time of its own
        assert httpx.post(address + TEXT, json=SHORT, timeout=PATIENCE_S).status_code == 200


def test_what_is_under_way_may_end_when_the_server_drains(session):
    asked = LONG | {"max_tokens": 60, "ignore_eos": True}
    with running(session, drain=PATIENCE_S) as (address, server):
        with stream(address, asked) as answer:
            lines = answer.iter_lines()
            next(lines)
            threading.Thread(target=server.drain).start()
            rest = list(lines)
        assert chunks(rest)[-1]["choices"][0]["finish_reason"] == "length"
        assert rest[-2] == "data: [DONE]"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address}/health")


@pytest.mark.parametrize("how", ["the time is over", "it is told again"])
def test_draining_has_a_limit(session, how):
    drain_s = 0.2 if how == "the time is over" else 3 * PATIENCE_S
    with (
        running(session, drain=drain_s) as (address, server),
        stream(address, LONG | {"max_tokens": 3000, "ignore_eos": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        threading.Thread(target=server.drain).start()
        if how == "it is told again":
            while not server._http.should_exit:
                time.sleep(0.01)
            server.drain()
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no thread a signal")
def test_a_signal_that_another_thread_gets_ends_the_wait(session):
    """The system may give a second signal that comes at once, and the first with it, to any thread:
    Ctrl-C under `timeout` was lost."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(time.monotonic()))
    try:
        with running(session) as (_, server):

            def interrupt():
                time.sleep(0.2)
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
                while not heard and time.monotonic() < began + 3:
                    time.sleep(0.01)
                heard.append(None)
                server.stop()

            began = time.monotonic()
            threading.Thread(target=interrupt).start()
            server.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard[0] is not None
