"""A running request, whose texts are one stream of steps that a protocol's reply formats.

Up to the allowed number of generations of the request run in parallel; their texts are told one
after the other. Nothing waits for a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from edgespec.completions import answers, request_limits
from edgespec.completions.answers import Answer, Usage
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Step
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.refusals import Refusal
from edgespec.completions.writing import MessageWriter
from edgespec.concurrency.owning import Closeable
from edgespec.ports.text_request import Tokens
from edgespec.values import GenerationResult, PromptProgress, TokenEvent

if TYPE_CHECKING:
    from edgespec.completions.service import Completions


class Reply:
    """One request that has been read, and what formats its answer; a protocol has its own."""

    def __init__(self, streams: bool, start: Callable[..., Completion]) -> None:
        """`start` begins the answer, given this and the name of the client."""
        self.streams = streams
        self._start = start

    def begin(self, client: str = "") -> Completion:
        """Start the answer. Raises UsageError and ModelError."""
        return self._start(self, client)

    def waiting(self) -> Iterable[Answer]:
        """Events that say that the answer goes on where there is nothing to tell; none: a
        comment."""
        return ()

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        """A text that has ended, without its index; `logged` are tokens with log probabilities."""
        return {}

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        """The whole answer."""
        raise NotImplementedError

    def step(self, step: Step, completion: Completion) -> Iterable[Answer]:
        """Events for the next step of a stream."""
        raise NotImplementedError

    def end(self, completion: Completion) -> Iterable[Answer]:
        """Events behind the last step."""
        return ()

    def failed(self, refusal: Refusal) -> Iterable[Answer]:
        """Events of a stream that ends in an error; none: the body of its response."""
        return ()


@dataclass(frozen=True, slots=True)
class ChoiceSource:
    """One generation of a request, which is a choice of the answer."""

    start: Callable[[], Tokens]
    index: int = 0
    """Index of its choice."""
    is_first_copy: bool = True
    """True if usage counts its prompt, which further copies share."""
    n_prompt_tokens: int = 0


class Completion(Closeable):
    """A running request: iterate it for the events of a stream, or call `whole`.

    Both end its generations; `cancel` and `close` do so early, from any thread.
    """

    def __init__(
        self,
        service: Completions,
        sources: Sequence[ChoiceSource],
        reply: Reply,
        new_writer: Callable[[], MessageWriter],
        n_at_once: Callable[[], int],
        pool_bytes: int,
        marks: Answer,
        max_text_s: float,
    ) -> None:
        """Start the first generation; raises its errors.

        `n_at_once()` generations may run, asked before each start. `marks` are fields of the
        response that are known before its texts. A text ends at its first line break after
        `max_text_s`.
        """
        self.reply = reply
        self.piece_of = service.piece_of
        self.pool_bytes = pool_bytes
        """Bytes that the request takes from the shared memory pool while it runs."""
        self._service = service
        self._n_at_once = n_at_once
        self._new_writer = new_writer
        self.parts: list[AnswerPart] = []
        """The parts of the current text so far; `finish_reason` is that of its end."""
        self.finish_reason = "stop"
        self._waiting = deque(sources)
        """Generations not started yet."""
        self._running: deque[tuple[ChoiceSource, Tokens]] = deque()
        """The generation that is consumed, and those that run meanwhile."""
        self.usage = Usage()
        """Token counts of the generations that have ended; it grows until the response ends."""
        self._first_marks = self.marks = marks
        """Additional fields of the response set at the end of a text."""
        self._max_text_s = max_text_s
        self._is_ending = False
        self._is_expired = False
        self._has_begun = False
        self.is_cut = False
        """True if a text was cancelled, or not started because of a cancellation."""
        self._begin()

    @property
    def source(self) -> ChoiceSource:
        """The current generation."""
        return self._running[0][0]

    @property
    def result(self) -> GenerationResult:
        """Result of the current generation, once it has ended."""
        return self._running[0][1].result

    def expire(self) -> None:
        """End all texts soon, from any thread, as if each had reached its limit of tokens."""
        self._is_expired = True
        self.cancel()

    def cancel(self) -> None:
        """End all texts soon and start no further ones, from any thread."""
        self._is_ending = True
        for _, tokens in [*self._running]:
            tokens.cancel()

    def close(self) -> None:
        """Cancel all generations and wait for them. Idempotent."""
        self.cancel()
        self._running[0][1].close()
        with suppress(Exception):  # a failed generation has no result
            self._count()
        while len(self._running) > 1:
            _, tokens = self._running.pop()
            tokens.close()
            with suppress(Exception):
                self._service.on_result(tokens.result)

    def __iter__(self) -> Iterator[Answer]:
        """The events of the stream."""
        for step in self.steps():
            yield from self.reply.step(step, self)
        yield from self.reply.end(self)

    def steps(self) -> Iterator[Step]:
        """The steps of the stream."""
        try:
            for source in self._generations():
                yield Step(source.index)
                yield from self._text(source)
        except GeneratorExit:  # dropped, perhaps by the garbage collector, where nothing may wait
            raise
        except BaseException:
            self.close()
            raise
        self.close()

    def whole(self) -> Answer:
        """The whole response. Raises RequestError for several choices that are too large."""
        with self:
            choices: list[Answer] = []
            n_characters = 0
            for source in self._generations():
                steps = self._text(source)
                events = (event for step in steps for event in step.events)
                logged = [event for event in events if event.logprobs is not None]
                choices.append({"index": source.index} | self.reply.choice(self, logged))
                n_characters += len(self.result.text)
                most = request_limits.MAX_ANSWER_CHARACTERS
                if self._service.serves and len(choices) > 1 and n_characters > most:
                    raise RequestError(
                        f"the choices have more than {most:,} characters together: ask "
                        "for fewer choices or fewer tokens, or for a stream",
                        "n",
                    )
            return self.reply.whole(choices, self)

    def _generations(self) -> Iterator[ChoiceSource]:
        """Make each generation current in turn."""
        yield self.source
        while self._waiting or len(self._running) > 1:
            if self.is_cut or (self._is_ending and not self._is_expired):
                self.is_cut = True
                return
            if len(self._running) == 1:
                self._begin()
            self._running.popleft()
            yield self.source

    def _begin(self) -> Tokens:
        """Start the next generation."""
        source = self._waiting.popleft()
        tokens = source.start()
        self._running.append((source, tokens))
        if self._is_ending:  # cancelled since it was checked
            tokens.cancel()
        return tokens

    def _text(self, source: ChoiceSource) -> Iterator[Step]:
        """Changes of the current generation's parts, and its end."""
        self._has_begun = True
        writer = self._new_writer()
        self.parts = writer.parts
        waiting: list[TokenEvent] = []
        n_characters = 0
        begun: float | None = None

        def told(changes: Iterable[Change]) -> Iterator[Step]:
            for change in changes:
                events = tuple(waiting) if change.is_told else ()
                yield Step(source.index, change, events=events)
                if change.is_told:
                    waiting.clear()

        for event in self._running[0][1]:
            # further generations can reuse the prompt that is now in the KV cache
            while self._waiting and len(self._running) < self._n_at_once() and not self._is_ending:
                self._begin().run_ahead()
            if isinstance(event, PromptProgress):
                yield Step(source.index, progress=event)
                continue
            now = self._service.clock()
            begun = now if begun is None else begun
            if now - begun > self._max_text_s and "\n" in event.text:
                self.expire()
            waiting.append(event)
            n_characters += len(event.text)
            was_reasoning = writer.is_reasoning
            changes = writer.push(event.text)
            if was_reasoning or writer.is_reasoning:
                self.usage.reasoning_tokens += 1
            yield from told(changes)
        self._count()
        # a cancelled text may have text that was held back
        rest = writer.push(self.result.text[n_characters:])
        yield from told([*rest, *writer.finish()])
        self.finish_reason = self._finish_reason(
            writer.has_calls and not (writer.is_cut_off and self.result.stopped_by is not None)
        )
        yield Step(source.index, finish_reason=self.finish_reason, events=tuple(waiting))

    def _count(self) -> None:
        if not self._has_begun:
            return
        self._has_begun = False
        result = self.result
        if self.source.is_first_copy:
            self.usage.prompt_tokens += len(result.prompt_tokens)
            self.usage.cached_tokens += result.reused_tokens
        self.usage.completion_tokens += len(result.tokens)
        self.marks = self._first_marks | {"timings": answers.timings(result)}
        self.is_cut |= result.finish_reason == "cancelled" and not self._is_expired
        self._service.on_result(result)

    def _finish_reason(self, has_calls: bool) -> str:
        """The reason in OpenAI's format, which has none for a session that is closed."""
        if self.is_cut and not self._is_ending:
            self._service.check_open()
        reason = self.result.finish_reason
        if reason in ("length", "context") or (self._is_expired and reason == "cancelled"):
            return "length"
        return "tool_calls" if has_calls and reason == "stop" else "stop"


class Chunks(Closeable):
    """The chunks of a running request, which end with it, or when nobody takes them any more."""

    def __init__(self, completion: Completion) -> None:
        # the completion knows neither: dropped, all of it goes without the garbage collector
        self._completion, self._events = completion, iter(completion)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Answer:
        return next(self._events)

    def cancel(self) -> None:
        """End all texts soon, from any thread."""
        self._completion.cancel()

    def close(self) -> None:
        """Cancel all texts and wait for them. Idempotent."""
        self._completion.close()
