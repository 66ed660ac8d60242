"""A running request in OpenAI's format, which gives its response whole or chunk by chunk.

Up to the allowed number of generations of the request run in parallel; their texts are formatted
one after the other. Nothing waits for a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from edgespec.completions import answers
from edgespec.completions.answers import Answer, Envelope, Usage
from edgespec.completions.protocols.answer_parts import (
    AnswerPart,
    Change,
    Told,
    delta_of,
    message_of,
)
from edgespec.completions.requests import RequestError
from edgespec.completions.writing import MessageWriter
from edgespec.concurrency.owning import Closeable
from edgespec.ports.text_request import Item, Tokens
from edgespec.values import GenerationResult, PromptProgress, TokenEvent

OnResult = Callable[[GenerationResult], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Format and limits of a response."""

    envelope: Envelope
    piece_of: answers.PieceOf
    wants_usage: bool = False
    on_result: OnResult | None = None
    """Called with the result of each generation that was started."""
    max_characters: int | None = None
    """Most characters of all choices together, if there are several in a whole response."""
    n_at_once: Callable[[], int] = lambda: 1
    """Number of generations that the request may run now; called before each start."""
    pool_bytes: int = 0
    """Bytes that the request takes from the shared memory pool while it runs."""
    marks: Answer = field(default_factory=dict)
    """Additional fields of the response that are known before its texts."""
    tells_origins: bool = False
    """True if a stream tells of each token who had guessed it."""
    check_open: Callable[[], None] = lambda: None
    """Raises SessionClosed if texts are cut short because their session is closed."""


@dataclass(frozen=True, slots=True)
class ChoiceSource:
    """One generation of a request, and the choices that use its text."""

    start: Callable[[], Tokens]
    indices: Sequence[int] = (0,)
    """Indices of its choices; several if greedy copies have the same text."""
    echo: str = ""
    """Text that the choices begin with."""
    is_first_copy: bool = True
    """True if usage counts its prompt, which further copies share."""
    n_prompt_tokens: int = 0


class Completion(Closeable):
    """A running request: iterate it for the chunks of a stream, or call `whole`.

    Both end its generations; `cancel` and `close` do so early, from any thread.
    """

    def __init__(
        self,
        sources: Sequence[ChoiceSource],
        delivery: Delivery,
        new_writer: Callable[[], MessageWriter] = MessageWriter,
    ) -> None:
        """Start the first generation; raises its errors."""
        self._delivery = delivery
        self._new_writer = new_writer
        self.parts: list[AnswerPart] = []
        """The parts of the current choice so far; `finish_reason` is that of its end."""
        self.finish_reason = "stop"
        self.pool_bytes = delivery.pool_bytes
        self._piece_of = delivery.piece_of
        self._waiting = deque(sources[1:])
        """Generations not started yet."""
        self._background: deque[tuple[ChoiceSource, Tokens]] = deque()
        """Generations that run while an earlier one is consumed."""
        self._usage = Usage()
        self._marks = delivery.marks
        """Additional fields of the response (see `answers.marks`), set at the end of a text."""
        self._is_ending = False
        self._is_expired = False
        self._has_begun = False
        self._chunks: Iterator[Answer] | None = None
        self.is_cut = False
        """True if a text was cancelled, or not started because of a cancellation."""
        self._source = sources[0]
        self._tokens = self._source.start()

    @property
    def result(self) -> GenerationResult:
        """Result of the current generation, once it has ended."""
        return self._tokens.result

    @property
    def usage(self) -> Usage:
        """Token counts of the generations that have ended; it grows until the response ends."""
        return self._usage

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of the first text's prompt, known from the beginning."""
        return self._source.n_prompt_tokens

    def expire(self) -> None:
        """End all texts soon, from any thread, as if each had reached its limit of tokens."""
        self._is_expired = True
        self.cancel()

    def cancel(self) -> None:
        """End all texts soon and start no further ones, from any thread."""
        self._is_ending = True
        self._tokens.cancel()
        for _, tokens in list(self._background):
            tokens.cancel()

    def close(self) -> None:
        """Cancel all generations and wait for them. Idempotent."""
        self._is_ending = True
        for _, tokens in self._background:
            tokens.cancel()
        self._tokens.close()
        with suppress(Exception):  # a failed generation has no result
            self._count()
        while self._background:
            _, tokens = self._background.popleft()
            tokens.close()
            with suppress(Exception):
                self._hear(tokens.result)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Answer:
        """The next chunk of the response."""
        if self._chunks is None:
            self._chunks = self._stream()
        return next(self._chunks)

    def whole(self) -> Answer:
        """The whole response. Raises RequestError for several choices that are too large."""
        with self:
            choices: list[Answer] = []
            n_characters = 0
            for source in self._generations():
                choices += self._indexed(self._choice())
                n_characters += len(source.indices) * (len(source.echo) + len(self.result.text))
                if len(choices) > 1:
                    self._check_size(n_characters)
            return self._delivery.envelope.whole(choices, self._usage) | self._marks

    def _stream(self) -> Iterator[Answer]:
        with self:
            for _ in self._generations():
                for choice in self._choices():
                    if isinstance(choice, PromptProgress):
                        yield self._progress_chunk(choice)
                        continue
                    for one in self._indexed(choice):
                        yield self._delivery.envelope.chunk(one) | self._marks
            if self._delivery.wants_usage:
                yield self._delivery.envelope.usage_chunk(self._usage) | self._marks

    def _progress_chunk(self, progress: PromptProgress) -> Answer:
        """A chunk without text, with the progress as llama.cpp's server sends it."""
        empty = self._part(Told(None, ""))
        (choice, *_) = self._indexed((empty or {}) | {"finish_reason": None})
        return self._delivery.envelope.chunk(choice) | {"prompt_progress": asdict(progress)}

    def _generations(self) -> Iterator[ChoiceSource]:
        """Make each generation current in turn; further ones may run in the background."""
        yield self._source
        while self._waiting or self._background:
            if self.is_cut or (self._is_ending and not self._is_expired):
                self.is_cut = True
                return
            if self._background:
                self._source, self._tokens = self._background.popleft()
            else:
                self._source = self._waiting.popleft()
                self._tokens = self._source.start()
            if self._is_ending:  # cancelled since it was checked
                self._tokens.cancel()
            yield self._source

    def _begin_others(self) -> None:
        """Start further generations, which can reuse the prompt that is now in the KV cache."""
        while (
            self._waiting
            and len(self._background) + 1 < self._delivery.n_at_once()
            and not self._is_ending
        ):
            source = self._waiting.popleft()
            tokens = source.start()
            tokens.run_ahead()
            self._background.append((source, tokens))
            if self._is_ending:  # cancelled since it was checked
                self.cancel()

    def _indexed(self, choice: Answer) -> list[Answer]:
        return [{"index": index} | deepcopy(choice) for index in self._source.indices]

    def _check_size(self, n_characters: int) -> None:
        most = self._delivery.max_characters
        if most is not None and n_characters > most:
            raise RequestError(
                f"the choices have more than {most:,} characters together: ask "
                "for fewer choices or fewer tokens, or for a stream",
                "n",
            )

    def _events(self) -> Iterator[Item]:
        """The items of the current generation, which is counted at its end."""
        self._has_begun = True
        splitter = self._new_writer().new_splitter()
        for event in self._tokens:
            self._begin_others()
            if isinstance(event, TokenEvent):
                was_reasoning = splitter.is_reasoning
                splitter.push(event.text)
                if was_reasoning or splitter.is_reasoning:
                    self._usage.reasoning_tokens += len(self._source.indices)
            yield event
        self._count()

    def _count(self) -> None:
        if not self._has_begun:
            return
        self._has_begun = False
        result = self.result
        if self._source.is_first_copy:
            self._usage.prompt_tokens += len(result.prompt_tokens)
            self._usage.cached_tokens += result.reused_tokens
        self._usage.completion_tokens += len(self._source.indices) * len(result.tokens)
        self._marks = self._delivery.marks | answers.marks(result)
        self.is_cut |= result.finish_reason == "cancelled" and not self._is_expired
        self._hear(result)

    def _hear(self, result: GenerationResult) -> None:
        if self._delivery.on_result is not None:
            self._delivery.on_result(result)

    def _finish_reason(self, has_calls: bool = False) -> str:
        """The reason in OpenAI's format, which has none for a session that is closed."""
        if self.is_cut and not self._is_ending:
            self._delivery.check_open()
        if self._is_expired and self.result.finish_reason == "cancelled":
            return "length"
        return answers.finish_reason(self.result, has_calls)

    def _logged_events(self) -> list[TokenEvent]:
        """Run the generation to its end and return its tokens with log probabilities."""
        tokens = (event for event in self._events() if isinstance(event, TokenEvent))
        return [event for event in tokens if event.logprobs is not None]

    def told(self) -> Iterator[Told]:
        """The stream as changes of the answer's parts, for protocols other than OpenAI's."""
        with self:
            for _ in self._generations():
                for told in self._told():
                    if isinstance(told, Told):
                        logged = answers.chat_logprobs(told.events, self._piece_of)
                        yield replace(told, logprobs=logged["content"] if logged else ())

    def _choice(self) -> Answer:
        writer = self._new_writer()
        events = self._logged_events()
        writer.push(self.result.text)
        writer.finish()
        self.parts = writer.parts
        self.finish_reason = self._finish_reason(writer.has_calls)
        logged = answers.chat_logprobs(events, self._piece_of)
        for part in self.parts:
            if part.kind == "text" and logged:
                part.logprobs = logged["content"]
        return self._whole_choice(events)

    def _choices(self) -> Iterator[Answer | PromptProgress]:
        yield from self._opening()
        for told in self._told():
            if isinstance(told, PromptProgress):
                yield told
            elif (choice := self._part(told)) is not None:
                if self._delivery.tells_origins:
                    choice |= {"origins": answers.origins(told.events)}
                yield choice

    def _told(self) -> Iterator[Told | PromptProgress]:
        """Changes of the current generation's parts, and its end."""
        writer = self._new_writer()
        self.parts = writer.parts
        waiting: list[TokenEvent] = []
        n_characters = 0

        def told(changes: Iterable[Change]) -> Iterator[Told]:
            for change in changes:
                if delta_of(change) is None:
                    yield Told(change)
                else:
                    yield Told(change, events=tuple(waiting))
                    waiting.clear()

        for event in self._events():
            if isinstance(event, PromptProgress):
                yield event
            else:
                waiting.append(event)
                n_characters += len(event.text)
                yield from told(writer.stream(event.text))
        # a cancelled text may have text that was held back
        rest = writer.push(self.result.text[n_characters:])
        yield from told([*rest, *writer.finish()])
        self.finish_reason = self._finish_reason(writer.has_calls)
        yield Told(None, self.finish_reason, events=tuple(waiting))

    def _whole_choice(self, events: Sequence[TokenEvent]) -> Answer:
        """The choice that the parts make, with the tokens that led to it."""
        raise NotImplementedError

    def _opening(self) -> Iterable[Answer]:
        """Choices of chunks before the first token."""
        raise NotImplementedError

    def _part(self, told: Told) -> Answer | None:
        """The choice of a chunk that tells a change or the end; None if it has none."""
        raise NotImplementedError


class ChatCompletion(Completion):
    """A running chat request; each choice is an assistant message."""

    def _whole_choice(self, events: Sequence[TokenEvent]) -> Answer:
        message = message_of(self.parts)
        return answers.chat_choice(message, self.finish_reason, events, self._piece_of)

    def _opening(self) -> Iterable[Answer]:
        return (answers.chat_delta({"role": "assistant", "content": ""}),)

    def _part(self, told: Told) -> Answer | None:
        delta = {} if told.change is None else delta_of(told.change)
        if delta is None:
            return None
        return answers.chat_delta(delta, told.finish_reason, told.events, self._piece_of)


class TextCompletion(Completion):
    """A running completion request; each choice continues a prompt."""

    def _whole_choice(self, events: Sequence[TokenEvent]) -> Answer:
        echo, reason = self._source.echo, self.finish_reason
        text = echo + self.result.text
        return answers.text_choice(text, reason, events, self._piece_of, len(echo))

    def _opening(self) -> Iterable[Answer]:
        echo = self._source.echo
        self._offset = len(echo)
        return (answers.text_choice(echo, None, (), self._piece_of),) if echo else ()

    def _part(self, told: Told) -> Answer | None:
        text = "" if told.change is None else told.change.text
        if not text and told.finish_reason is None:
            return None
        offset = self._offset
        self._offset += len(text)
        return answers.text_choice(text, told.finish_reason, told.events, self._piece_of, offset)
