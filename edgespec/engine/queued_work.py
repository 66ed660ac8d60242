"""Work with the models that is no text, done by the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class QueuedWork:
    """Work that waits for the end of a pass, and has one result."""

    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)

    def do(self) -> None:
        """Do the work, in the engine's thread."""
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.work())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.done.set_exception(error)

    def give_up(self, error: BaseException | None) -> None:
        """End the work that is not done any more."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)
