"""A generation of a request that writes while the tokens of another one are taken.

Knows generations and threads, and no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from edgespec.concurrency.owning import Closeable
from edgespec.values import GenerationResult, TokenEvent


class Tokens(Protocol):
    """The part of a generation that a completion uses."""

    @property
    def result(self) -> GenerationResult: ...

    def __iter__(self) -> Iterator[TokenEvent]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class TokensAhead(Closeable):
    """Implements `Tokens` for a generation that a thread of its own brings on; its tokens wait
    here."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._events: SimpleQueue[TokenEvent | None] = SimpleQueue()
        """Tokens that nobody has taken; None at the end."""
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name="edgespec-choice", daemon=True)
        self._thread.start()

    @property
    def result(self) -> GenerationResult:
        return self._tokens.result

    def __iter__(self) -> Iterator[TokenEvent]:
        while (event := self._events.get()) is not None:
            yield event
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        self._tokens.cancel()

    def close(self) -> None:
        """End the generation where it is, and wait for its thread. Idempotent."""
        self._tokens.cancel()
        self._thread.join()
        self._tokens.close()

    def _run(self) -> None:
        try:
            for event in self._tokens:
                self._events.put(event)
        except Exception as error:  # noqa: BLE001 - raised where its tokens are taken
            self._failure = error
        finally:
            self._events.put(None)
