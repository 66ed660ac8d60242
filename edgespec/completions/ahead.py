"""Runs a further generation of a request in the background while an earlier one is consumed.

Knows generations and threads, but no responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from edgespec.concurrency.owning import Closeable
from edgespec.values import GenerationResult, TokenEvent


class Tokens(Protocol):
    """Protocol of the part of a generation that a completion uses."""

    @property
    def result(self) -> GenerationResult: ...

    def __iter__(self) -> Iterator[TokenEvent]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class TokensAhead(Closeable):
    """A generation that runs in a thread of its own and buffers its tokens; implements `Tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._events: SimpleQueue[TokenEvent | None] = SimpleQueue()
        """Buffered tokens; None marks the end."""
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
        """Cancel the generation and wait for its thread. Idempotent."""
        self._tokens.cancel()
        self._thread.join()
        self._tokens.close()

    def _run(self) -> None:
        try:
            for event in self._tokens:
                self._events.put(event)
        except Exception as error:  # noqa: BLE001 - raised by __iter__
            self._failure = error
        finally:
            self._events.put(None)
