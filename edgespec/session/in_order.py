"""Results of many generations in the order of their prompts, with several written ahead.

Knows generations, and nothing of prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TypeVar

from edgespec.engine.generation import Generation
from edgespec.values import GenerationResult

P = TypeVar("P")

PROMPTS_PER_SLOT = 2
"""Prompts started or queued per generation that runs at once: a slow one leaves no slot idle, and
few results wait to be taken."""


def in_order(
    prompts: Iterable[P], start: Callable[[P], Generation], n_at_once: int
) -> Generator[GenerationResult, None, None]:
    """Results in the order of the prompts, which are taken as needed, in the iterating thread.

    An error of a prompt or a generation is raised in its place and ends all others, as does
    `close`. A generation that was cancelled gives the last result.
    """
    waiting = iter(prompts)
    started: deque[Generation] = deque()
    failure: Exception | None = None
    try:
        while True:
            n_more = 0 if failure else PROMPTS_PER_SLOT * n_at_once - len(started)
            try:
                for prompt in islice(waiting, n_more):
                    started.append(start(prompt))
                    started[-1].run_ahead()
            except Exception as error:  # noqa: BLE001 - raised in its place
                failure = error
            if not started:
                break
            for _ in started[0]:
                pass
            result = started.popleft().result
            yield result
            if result.finish_reason == "cancelled":
                return
        if failure is not None:
            raise failure
    finally:
        for generation in started:
            generation.cancel()
        for generation in started:
            generation.close()
