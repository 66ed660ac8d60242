"""Flags of `edgespec serve`: names, defaults of requests, and the log of requests."""

import argparse
import io
import json
from pathlib import Path

import pytest

from edgespec.cli.command_line import main
from edgespec.cli.commands import serve
from edgespec.cli.console import Console
from edgespec.cli.flags import parser
from edgespec.cli.invocation import server_settings, settings_from
from edgespec.errors import UsageError
from edgespec.server.front import AnsweredRequest
from edgespec.settings.config import ServerSettings
from sentences import hold_sentence, refuses

RECOMMENDED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def parsed(*flags: str) -> argparse.Namespace:
    return parser.parse(["serve", *flags])


def settings(*flags: str):
    return settings_from(parsed(*flags)).generate


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ((), None),
        (("-m", "smollm2"), "smollm2"),
        (("-m", "/models/big.gguf"), "big.gguf"),
        (("-m", "models/onnx-folder/"), "onnx-folder"),
        (("-hf", "USER/REPO:Q4_K_M"), "USER/REPO:Q4_K_M"),
    ],
)
def test_a_model_is_called_what_was_typed(flags, name):
    args = parsed(*flags)
    if "model" in args:  # one of a list
        [args.model] = args.model
    assert serve._name(args) == name


def test_requests_are_sampled_as_recommended_unless_flags_say_otherwise():
    assert serve._sampling(settings(), RECOMMENDED) == RECOMMENDED
    told = serve._sampling(
        settings("--temp", "0.2", "-s", "7", "--repeat-penalty", "1.1"), RECOMMENDED
    )
    assert told == RECOMMENDED | {"temperature": 0.2, "seed": 7, "repeat_penalty": 1.1}
    assert serve._sampling(settings("-s", "-1"), RECOMMENDED) == RECOMMENDED


@pytest.mark.parametrize(("flags", "limit"), [((), None), (("-n", "5"), 5), (("-n", "-1"), None)])
def test_answers_have_a_limit_if_one_is_given(flags, limit):
    assert serve._max_tokens(settings(*flags)) == limit


def told(tmp_path: Path, *lines: str, flags: tuple[str, ...] = ()) -> ServerSettings:
    file = tmp_path / "server.toml"
    file.write_text("\n".join(lines))
    return server_settings(parsed("--config", str(file), *flags))


def test_a_file_says_what_has_no_flag_and_flags_win_over_it(tmp_path: Path):
    found = told(tmp_path, "port = 1", "queue = 3", "alias = 'mine'", flags=("--port", "2"))
    assert (found.port, found.queue, found.alias, found.drain) == (2, 3, "mine", 30)
    with refuses(UsageError):
        told(tmp_path, "drain = -1")


def test_what_cannot_be_meant_is_a_mistake(capsys):
    assert main(["serve", "--port", "x"]) == 2
    hold_sentence(capsys.readouterr().err)


def test_an_origin_may_be_written_as_in_an_address_bar(tmp_path: Path):
    guard = serve._guard(told(tmp_path, "allowed-origin = ['HTTP://LocalHost:3000/']"))
    assert guard.allowed_origins == {"http://localhost:3000"}
    with pytest.raises(UsageError):
        serve._guard(told(tmp_path, "allowed-origin = ['http://a.example/page']"))


ANSWERED = AnsweredRequest("req_1", "127.0.0.1", "POST", "/v1/completions", 200, 1.25, 12, 64)


FAILED = AnsweredRequest(
    "req_2", "", "GET", "/", 500, 0, ignored=["x"], traceback="Traceback ...\nKeyError: 'a'\n"
)


def logged(*, is_json: bool = False, quiet: bool = False) -> str:
    stream = io.StringIO()
    for answered in (ANSWERED, FAILED):
        serve.log_request(Console(stderr=stream), is_json, quiet, answered)
    return stream.getvalue()


def test_a_request_is_one_line():
    first, *_ = logged().splitlines()
    assert first.partition(" ")[2] == "req_1 POST /v1/completions 200 12 + 64 tokens 1.250 s"


def test_a_failure_has_its_traceback():
    assert 'req_2 GET / 500 0.000 s, ignored fields: "x"\nTraceback ...\nKey' in logged()


def test_a_log_of_json_has_an_object_a_line():
    request, failure = [json.loads(line) for line in logged(is_json=True).splitlines()]
    assert request.pop("time") and failure.pop("time")
    assert request == {
        "id": "req_1",
        "client": "127.0.0.1",
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
        "prompt_tokens": 12,
        "completion_tokens": 64,
        "seconds": 1.25,
    }
    assert (failure["id"], failure["ignored"]) == ("req_2", ["x"])
    assert failure["traceback"] == FAILED.traceback


def test_a_quiet_server_tells_failures_alone():
    assert "/v1/completions" not in logged(quiet=True)
    assert "KeyError" in logged(quiet=True)
