"""A session that writes given pieces, and runs dialects over it without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Marks
from edgespec.completions.running_request import Reply
from edgespec.completions.service import Completions
from edgespec.ports.text_request import TextRequest
from edgespec.values import FinishReason, GenerationResult, TokenEvent

PROMPT = (7, 8, 9)
TOOL_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class ScriptedTokens:
    def __init__(self, pieces: Sequence[str], reason: FinishReason, stopped_by: str | None) -> None:
        self._pieces, self._reason, self._stopped_by = pieces, reason, stopped_by

    @property
    def result(self) -> GenerationResult:
        tokens = tuple(range(len(self._pieces)))
        return GenerationResult(
            "".join(self._pieces),
            PROMPT,
            tokens,
            self._reason,
            reused_tokens=1,
            stopped_by=self._stopped_by,
        )

    def run_ahead(self) -> None:
        pass

    def __iter__(self) -> Iterator[TokenEvent]:
        for place, piece in enumerate(self._pieces):
            yield TokenEvent(piece, place, "target", place)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class ScriptedSession:
    """Keeps what it is asked, and answers with `pieces`."""

    target = SimpleNamespace(name="fake", n_ctx=100, n_vocab=50)
    eog_tokens = frozenset({0})

    def __init__(
        self,
        *pieces: str,
        reason: FinishReason = "stop",
        stopped_by: str | None = None,
        opens_reasoning: bool = False,
    ) -> None:
        self._script = (pieces, reason, stopped_by)
        self._text = "<think>" if opens_reasoning else ""
        self.messages: list[dict[str, Any]] = []
        self.tools: Any = None
        self.variables: dict[str, Any] = {}
        self.requests: list[TextRequest] = []

    def chat_prompt(self, messages: Any, tools: Any = None, template: Any = None) -> ChatPrompt:
        self.messages, self.tools, self.variables = list(messages), tools, template
        return ChatPrompt(self._text, PROMPT, Marks("<think>", "</think>"), "", opened=self._text)

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int:
        return max_tokens or 90

    tokenizer = property(lambda self: self)

    def piece(self, token: int) -> bytes:
        return b"x"

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def submit(self, request: TextRequest) -> ScriptedTokens:
        self.requests.append(request)
        return ScriptedTokens(*self._script)


def completions(session: ScriptedSession) -> Completions:
    return Completions(cast(Any, session), "model", clock=lambda: 1000.0)


def whole(dialect: Callable[[Any], Reply], content: Any) -> dict[str, Any]:
    """The whole answer to a request."""
    return dialect(content).begin().whole()


def events(dialect: Callable[[Any], Reply], content: Any) -> list[dict[str, Any]]:
    """The events of the answer to a request."""
    return list(dialect(content | {"stream": True}).begin())
