"""One seed, one text: on the command line, in Python, and from the server, whole and streamed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edgespec.session.session import Session
from edgespec.settings.config import SamplingParams
from server_running import TEMPLATE, pair, serving

N_TOKENS = 40
PROMPT = "def read_lines(filename):"
LONG_PROMPT = "import sys\n\n" + 8 * "def read_lines(filename):\n    return filename\n\n" + PROMPT
"""Longer than a tile of attention, and than a batch of a prompt."""
MESSAGES = [{"role": "user", "content": "write gcd"}]
GREEDY: dict[str, Any] = {"seed": 7, "temperature": 0}
WARM: dict[str, Any] = {"seed": 7, "temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0}
FILTERED: dict[str, Any] = WARM | {"top_k": 40, "top_p": 0.9, "min_p": 0.05}
RULES = pytest.mark.parametrize("rules", [GREEDY, WARM, FILTERED], ids=["greedy", "warm", "kpm"])
FLAGS = {"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair() as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[httpx.Client]:
    with serving(session) as address, httpx.Client(base_url=address, timeout=60) as http:
        yield http


def run(command: str, rules: dict[str, Any], *arguments: str, lines: str = "") -> str:
    flags = [part for name, value in rules.items() for part in (FLAGS.get(name, "--seed"), value)]
    limit = () if "-n" in arguments else ("-n", N_TOKENS)
    done = subprocess.run(
        [sys.executable, "-m", "edgespec", command, *map(str, [*arguments, *flags, *limit])],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT], ids=["short", "long"])
@RULES
def test_a_prompt_is_continued_alike(
    session: Session, server: httpx.Client, rules: dict[str, Any], prompt: str
) -> None:
    """The session has read other texts before, and a part of this one; the command has not."""
    import openai  # two seconds, in every process that collects tests

    session.generate(prompt[: len(prompt) // 2], max_tokens=3)
    expected = session.generate(prompt, SamplingParams(**rules), N_TOKENS).text
    asked = {"prompt": prompt, "max_tokens": N_TOKENS} | rules
    assert json.loads(run("generate", rules, "-p", prompt, "--json"))["text"] == expected
    assert session.create_completion(**asked)["choices"][0]["text"] == expected  # type: ignore[index]
    answer = server.post("/v1/completions", json=asked)
    assert answer.json()["choices"][0]["text"] == expected
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as official:
        known = {name: asked[name] for name in asked if name not in {"top_k", "min_p"}}
        others = {name: asked[name] for name in asked if name in {"top_k", "min_p"}}
        chunks = official.completions.create(
            model="pair", stream=True, extra_body=others or None, **known
        )
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected


@pytest.mark.slow
@RULES
def test_a_conversation_is_answered_alike(
    session: Session, server: httpx.Client, rules: dict[str, Any]
) -> None:
    with session.chat(MESSAGES, SamplingParams(**rules), N_TOKENS) as generation:
        expected = "".join(event.text for event in generation)
    asked = {"messages": MESSAGES, "max_tokens": N_TOKENS} | rules
    written = run("chat", rules, "--quiet", "--chat-template", TEMPLATE, lines="write gcd\n")
    assert written == expected + "\n"
    answer = server.post("/v1/chat/completions", json=asked)
    assert answer.json()["choices"][0]["message"]["content"] == expected
    chunks = session.create_chat_completion(stream=True, **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]  # type: ignore[index, union-attr]
    assert "".join(delta.get("content", "") for delta in deltas) == expected  # type: ignore[union-attr, attr-defined]
