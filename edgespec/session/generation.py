"""The handle of one request, which is iterated, cancelled and closed.

Knows the request and its turn in the engine, and nothing of drafting.
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
    """Keyword options of `Session.stream`, which documents them."""

    stop: str | Sequence[str]
    progress: Progress | None
    grammar: Grammar | None
    logprobs: int | None
    prompt_cache: PromptCache | None


class Generation(Closeable):
    """Iterator over the tokens of one request as they are accepted, with a `result` at its end.

    Taking the first token starts it: it then waits for its turn in the session. It ends with its
    text, when it is cancelled, closed or no longer referenced, and after an error of the models.
    Any thread may take the next token, one thread at a time.
    """

    def __init__(
        self,
        engine: SharedEngine,
        request: TextRequest,
        paging: Callable[[], PagingStats],
        load_s: float,
        owner: object = None,
    ) -> None:
        """`paging` returns the totals so far; `owner` is referenced as long as this exists.

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

        Raises SessionClosed if the session was closed. Raises UsageError while another thread takes
        a token, and if this thread has another unfinished generation of the session, which would be
        a deadlock. Errors of the models end the generation.
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
        """The whole text, or the text so far if the generation was cancelled or closed.

        It includes accepted tokens that were not taken. Raises UsageError before the end, and the
        error that ended the generation.
        """
        if self._failure is not None:
            raise self._failure
        if self._result is None and self._engine.is_closed:
            self._end()
        if self._result is None:
            raise UsageError("the generation has not ended: iterate it to its end, or close it")
        return self._result

    def cancel(self) -> None:
        """End the text soon, from any thread; its finish reason is "cancelled"."""
        self._engine.cancel(self._request)

    def close(self) -> None:
        """End the text and wait until the engine is free. Idempotent, from any thread.

        Raises UsageError in a callback of the generation itself.
        """
        self._users.close(self.cancel, self._end)

    def __del__(self) -> None:
        # the garbage collector may run within the models' calls: the next in line cleans up
        if turn := getattr(self, "_turn", None):
            turn.is_dropped = True

    def _advance(self) -> TokenEvent | None:
        """The next token, None at the end."""
        try:
            with self._engine.running(self._turn) as events:
                if self._paging_before is None:
                    self._paging_before = self._paging()
                return self._take(events)
        except Cancelled:  # while waiting; the engine itself ends the text of a running generation
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
        """Give up the turn and set the result, once."""
        if self._result is None:
            self._engine.leave(self._turn)
            self._request.transcript.cancel()
            paging = self._paging()
            self._result = self._request.result(
                paging.since(self._paging_before or paging), self._load_s
            )


def _guarded(progress: Progress, engine: SharedEngine, users: Users) -> Progress:
    """`progress`, during which neither engine nor generation may be closed.

    It holds no reference to the generation, which ends when it is no longer referenced.
    """

    def guarded(what: str, share: float) -> None:
        with engine.within(), users.within():
            progress(what, share)

    return guarded
