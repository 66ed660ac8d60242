"""One request in OpenAI's shape under way: its answer whole, or chunk by chunk.

A generation makes the text; here it gets its shape. Nothing waits for a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

from edgespec.completions import answers
from edgespec.completions.answers import Answer, Envelope
from edgespec.completions.writing import MessageWriter
from edgespec.concurrency.owning import Closeable
from edgespec.values import GenerationResult, TokenEvent


class Tokens(Protocol):
    """What is needed of a generation."""

    @property
    def result(self) -> GenerationResult: ...

    def __iter__(self) -> Iterator[TokenEvent]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Completion(Closeable):
    """A request under way: iterate it for the chunks of a stream, or take it `whole`.

    Either ends the generation; `cancel` and `close` do so early, from any thread.
    """

    def __init__(
        self,
        tokens: Tokens,
        envelope: Envelope,
        piece_of: answers.PieceOf,
        wants_usage: bool = False,
    ) -> None:
        self._tokens = tokens
        self._envelope = envelope
        self._piece_of = piece_of
        self._wants_usage = wants_usage
        self._chunks: Iterator[Answer] | None = None

    @property
    def result(self) -> GenerationResult:
        """Text, tokens and figures, once it has ended."""
        return self._tokens.result

    def cancel(self) -> None:
        """At any moment: end the text soon."""
        self._tokens.cancel()

    def close(self) -> None:
        """End it where it is. Idempotent."""
        self._tokens.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Answer:
        """The next chunk of the answer."""
        if self._chunks is None:
            self._chunks = self._stream()
        return next(self._chunks)

    def whole(self) -> Answer:
        """The answer at once."""
        with self:
            events = list(self._tokens)
            return self._envelope.whole(self._choice(events), self.result)

    def _stream(self) -> Iterator[Answer]:
        with self:
            for choice in self._choices():
                yield self._envelope.chunk(choice)
            if self._wants_usage:
                yield self._envelope.usage_chunk(self.result)

    def _choice(self, events: list[TokenEvent]) -> Answer:
        raise NotImplementedError

    def _choices(self) -> Iterator[Answer]:
        raise NotImplementedError


class ChatCompletion(Completion):
    """An assistant's message."""

    def __init__(
        self,
        tokens: Tokens,
        envelope: Envelope,
        piece_of: answers.PieceOf,
        writer: MessageWriter,
        wants_usage: bool = False,
    ) -> None:
        super().__init__(tokens, envelope, piece_of, wants_usage)
        self._writer = writer

    def _choice(self, events: list[TokenEvent]) -> Answer:
        for event in events:
            self._writer.push(event.text)
        self._writer.push(self.result.text[sum(len(event.text) for event in events) :])
        self._writer.finish()
        reason = answers.finish_reason(self.result, self._writer.has_calls)
        return answers.chat_choice(self._writer.message, reason, events, self._piece_of)

    def _choices(self) -> Iterator[Answer]:
        yield answers.chat_delta({"role": "assistant", "content": ""})
        waiting: list[TokenEvent] = []
        n_characters = 0
        for event in self._tokens:
            waiting.append(event)
            n_characters += len(event.text)
            for delta in self._writer.push(event.text):
                yield answers.chat_delta(delta, None, waiting, self._piece_of)
                waiting = []
        # a text that was cancelled ends with what was held back
        rest = self._writer.push(self.result.text[n_characters:])
        for delta in [*rest, *self._writer.finish()]:
            yield answers.chat_delta(delta, None, waiting, self._piece_of)
            waiting = []
        reason = answers.finish_reason(self.result, self._writer.has_calls)
        yield answers.chat_delta({}, reason, waiting, self._piece_of)


class TextCompletion(Completion):
    """The text that follows a prompt."""

    def __init__(
        self,
        tokens: Tokens,
        envelope: Envelope,
        piece_of: answers.PieceOf,
        echo: str = "",
        wants_usage: bool = False,
    ) -> None:
        super().__init__(tokens, envelope, piece_of, wants_usage)
        self._echo = echo

    def _choice(self, events: list[TokenEvent]) -> Answer:
        reason = answers.finish_reason(self.result)
        text, offset = self._echo + self.result.text, len(self._echo)
        return answers.text_choice(text, reason, events, self._piece_of, offset)

    def _choices(self) -> Iterator[Answer]:
        offset = len(self._echo)
        if self._echo:
            yield answers.text_choice(self._echo, None, (), self._piece_of)
        waiting: list[TokenEvent] = []
        n_characters = 0
        for event in self._tokens:
            waiting.append(event)
            if event.text:
                yield answers.text_choice(event.text, None, waiting, self._piece_of, offset)
                n_characters += len(event.text)
                offset += len(event.text)
                waiting = []
        rest = self.result.text[n_characters:]
        reason = answers.finish_reason(self.result)
        yield answers.text_choice(rest, reason, waiting, self._piece_of, offset)
