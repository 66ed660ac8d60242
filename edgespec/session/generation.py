"""A generation: the handle of one request, which is iterated, cancelled and closed.

Knows the request and its turn, and nothing of drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self, TypedDict

from edgespec.concurrency.owning import Closeable, Users
from edgespec.engine.sharing import SharedEngine
from edgespec.errors import Cancelled, UsageError
from edgespec.grammar.specification import Grammar
from edgespec.ports import Progress
from edgespec.ports.text_request import TextRequest
from edgespec.state.prompt_cache import PromptCache
from edgespec.values import GenerationResult, PagingStats, TokenEvent


class TextOptions(TypedDict, total=False):
    """Options of a text, as `Session.stream` documents them."""

    stop: str | Sequence[str]
    progress: Progress | None
    grammar: Grammar | None
    logprobs: int | None
    prompt_cache: PromptCache | None


class Generation(Closeable):
    """The tokens of one request, as they are accepted, and afterwards its `result`.

    Nothing happens before the first token is taken; then the generation waits until those of the
    session that came before it have ended. It is over when its text is, when it is cancelled or
    closed, after an error of the models, and when nobody refers to it any more. Any thread may
    advance it, one at a time.
    """

    def __init__(
        self,
        engine: SharedEngine,
        request: TextRequest,
        paging: Callable[[], PagingStats],
        load_s: float,
        owner: object = None,
    ) -> None:
        """`paging` returns the totals so far; `owner` lives at least as long as this.

        Raises UsageError if the target cannot serve the request, and SessionClosed.
        """
        self._engine = engine
        self._paging = paging
        self._load_s = load_s
        self._owner = owner
        self._users = Users("the generation")
        self._paging_before: PagingStats | None = None
        self._result: GenerationResult | None = None
        self._failure: Exception | None = None
        if request.progress is not None:
            request = replace(request, progress=_guarded(request.progress, engine, self._users))
        self._request = engine.admit(request)
        self._turn = engine.open(self._request)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TokenEvent:
        """The next token. StopIteration carries the result.

        Raises SessionClosed where the session was closed meanwhile; UsageError while another thread
        is at it, and where this thread has another generation of the session under way, for which
        it would wait for ever. Errors of the models end the generation.
        """
        event = None
        if self._result is None:
            with self._users.use(alone=True):
                event = self._advance()
        if event is None:
            raise StopIteration(self._result)
        return event

    @property
    def result(self) -> GenerationResult:
        """The whole text, or the text so far if it was cancelled or closed.

        Tokens that were accepted and not yet taken belong to it. Raises UsageError before the
        end, and the error that ended the generation.
        """
        if self._failure is not None:
            raise self._failure
        if self._result is None and self._engine.is_closed:
            self._end()
        if self._result is None:
            raise UsageError("the generation has not ended: iterate it to its end, or close it")
        return self._result

    def cancel(self) -> None:
        """From any thread, at any moment: end the text soon; its finish reason is "cancelled"."""
        self._engine.cancel(self._request)

    def close(self) -> None:
        """End the text here and wait until the engine is free. Idempotent, from any thread.

        Raises UsageError within a callback of the generation itself.
        """
        self._users.close(self.cancel, self._end)

    def __del__(self) -> None:
        # The collector may run within the models' own calls: the next in line cleans up.
        if turn := getattr(self, "_turn", None):
            turn.is_dropped = True

    def _advance(self) -> TokenEvent | None:
        """The next token, None at the end."""
        try:
            with self._engine.running(self._turn) as events:
                if self._paging_before is None:
                    self._paging_before = self._paging()
                return self._take(events)
        except Cancelled:  # in line; the engine ends the text of a running one itself
            self._end()
            return None

    def _take(self, events: Iterator[TokenEvent]) -> TokenEvent | None:
        try:
            event = next(events, None)
        except BaseException as error:
            self._failure = error if isinstance(error, Exception) else None
            self._end()
            raise
        if event is None:
            self._end()
        return event

    def _end(self) -> None:
        """Leave the engine to the next generation and set the result, if that is not done yet."""
        if self._result is None:
            self._engine.leave(self._turn)
            self._request.transcript.cancel()
            paging = self._paging()
            self._result = self._request.result(
                paging.since(self._paging_before or paging), self._load_s
            )


def _guarded(progress: Progress, engine: SharedEngine, users: Users) -> Progress:
    """`progress`, in which neither may be closed.

    Knows nothing of the generation, which is over as soon as nobody else knows it.
    """

    def guarded(what: str, share: float) -> None:
        with engine.within(), users.within():
            progress(what, share)

    return guarded
