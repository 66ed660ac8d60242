"""Clients that leave while their prompt is read: their next try goes on where they left."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from edgespec_runtimes.gguf.model import GgufModel
from server_running import pair, serving

PROMPT = "def f(x):\n    return x + 1\n\n\n" * 60
BODY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.9, "seed": 3}
DIRECT = httpx.Client(trust_env=False, timeout=60)


def asked(address: str) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were known."""
    answer = DIRECT.post(f"{address}/v1/completions", json=BODY).json()
    usage = answer["usage"]["prompt_tokens_details"]
    return answer["choices"][0]["text"], usage["cached_tokens"]


def test_the_next_try_reuses_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = GgufModel._compute

    def slow(self: GgufModel, *arguments: Any) -> int:
        time.sleep(0.05)
        return computed(self, *arguments)

    settings = {"batch_size": 64, "prompt_cache": None}
    with pair(**settings) as session, serving(session) as address:
        text, n_known = asked(address)
        assert n_known == 0
    with pair(**settings) as session, serving(session) as address:
        with monkeypatch.context() as patched:
            patched.setattr(GgufModel, "_compute", slow)
            body = BODY | {"stream": True, "return_progress": True}
            with DIRECT.stream("POST", f"{address}/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    told = json.loads(line.removeprefix("data: ") or "{}").get("prompt_progress")
                    if told and told["processed"] > told["total"] / 3:
                        break
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                figures = DIRECT.get(f"{address}/health").json()
                if not figures.get("requests_in_progress"):
                    break
                time.sleep(0.05)
        again, n_known = asked(address)
    assert again == text
    assert told["total"] / 3 < n_known < told["total"] - 64
