"""The server's queue: whose turn it is, and who is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from edgespec.completions.refusals import Refusal
from edgespec.server.queueing import Queue, Turns


class QueueTrial:
    """Requests of named clients, each of which ends when it is told to."""

    def __init__(self, max_waiting: int, n_slots: int = 1, pool_bytes: int = 16) -> None:
        self.turns = Turns(n_slots, pool_bytes)
        self.queue = Queue(max_waiting, lambda: [self.turns])
        self.begun: list[str] = []
        self.refused: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str) -> None:
        """Request `a1` is the first of client `a`."""
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._request(name))
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def leave(self, name: str) -> None:
        self._tasks[name].cancel()
        await settle()

    async def end_all(self) -> None:
        for _ in range(len(self._tasks)):
            for name in list(self.begun):
                await self.end(name)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @staticmethod
    def _bytes_of(name: str) -> int:
        """Request `a1+8` needs eight bytes of the pool."""
        return int(name.partition("+")[2] or 0)

    async def _request(self, name: str) -> None:
        try:
            with self.queue.place():
                async with self.turns.turn(self._bytes_of(name)):
                    self.begun.append(name)
                    await self._ends[name].wait()
        except Refusal as refusal:
            self.refused.append(name)
            self.refusal = refusal


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def run(trial: Coroutine[Any, Any, None]) -> None:
    asyncio.run(trial)


@pytest.mark.parametrize("n_slots", [1, 3])
def test_requests_are_answered_in_their_order(n_slots: int) -> None:
    async def trial() -> None:
        asked = QueueTrial(9, n_slots)
        for i in range(6):
            await asked.ask(f"a{i}")
        assert asked.begun == [f"a{i}" for i in range(n_slots)]
        assert asked.queue.n_processing == n_slots
        await asked.end_all()
        assert asked.begun == [f"a{i}" for i in range(6)]
        assert (asked.queue.n_processing, asked.queue.n_in_progress) == (0, 0)

    run(trial())


def test_who_leaves_the_line_is_passed_over() -> None:
    async def trial() -> None:
        asked = QueueTrial(9)
        for name in ("a0", "a1", "b0", "a2"):
            await asked.ask(name)
        await asked.leave("a1")
        await asked.leave("b0")
        await asked.end_all()
        assert asked.begun == ["a0", "a2"]
        assert asked.queue.n_in_progress == 0

    run(trial())


def test_a_full_queue_refuses_the_next_one() -> None:
    async def trial() -> None:
        asked = QueueTrial(2)
        for name in ("a0", "b0", "c0", "d0", "a1"):
            await asked.ask(name)
        assert asked.refused == ["d0", "a1"]
        assert asked.refusal.status == 503
        assert int(asked.refusal.headers["Retry-After"]) > 0
        await asked.end_all()
        assert asked.begun == ["a0", "b0", "c0"]

    run(trial())


def test_requests_without_bytes_pass_those_that_wait_for_them() -> None:
    async def trial() -> None:
        asked = QueueTrial(9, 4, pool_bytes=16)
        for name in ("a0+8", "b0+8", "c0+8", "c1", "d0"):
            await asked.ask(name)
        assert asked.begun == ["a0+8", "b0+8", "c1", "d0"]
        await asked.end("d0")
        assert len(asked.begun) == 4
        await asked.end("b0+8")
        assert asked.begun[4:] == ["c0+8"]
        await asked.end_all()

    run(trial())


def test_who_needs_many_bytes_is_not_passed_by_those_who_need_few() -> None:
    async def trial() -> None:
        asked = QueueTrial(9, 4, pool_bytes=16)
        for name in ("a0+8", "b0+16", "c0+4", "d0+4"):
            await asked.ask(name)
        assert asked.begun == ["a0+8"]
        await asked.end("a0+8")
        assert asked.begun == ["a0+8", "b0+16"]
        await asked.end("b0+16")
        assert asked.begun[2:] == ["c0+4", "d0+4"]
        await asked.end_all()

    run(trial())


def test_who_leaves_while_waiting_for_bytes_lets_those_behind_begin() -> None:
    async def trial() -> None:
        asked = QueueTrial(9, 4, pool_bytes=16)
        for name in ("a0+8", "b0+16", "c0+8"):
            await asked.ask(name)
        assert asked.begun == ["a0+8"]
        await asked.leave("b0+16")
        assert asked.begun == ["a0+8", "c0+8"]
        await asked.end_all()
        assert asked.turns._free_bytes == 16

    run(trial())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_no_turn_is_lost(seed: int) -> None:
    async def trial() -> None:
        chance = random.Random(seed)
        asked = QueueTrial(chance.randrange(6), chance.randrange(1, 4), pool_bytes=16)
        n_asked = dict.fromkeys("abcd", 0)
        for _ in range(80):
            match chance.choice(["ask", "ask", "end", "leave"]):
                case "ask":
                    client = chance.choice("aaabcd")
                    n_bytes = chance.choice(["", "", "+4", "+8", "+16"])
                    await asked.ask(f"{client}{n_asked[client]}{n_bytes}")
                    n_asked[client] += 1
                case "end" if asked.begun:
                    await asked.end(chance.choice(asked.begun))
                case "leave" if asked._tasks:
                    await asked.leave(chance.choice(list(asked._tasks)))
            assert asked.queue.n_processing <= asked.turns.n_slots
            assert asked.turns._free_bytes >= 0
        await asked.end_all()
        assert (asked.queue.n_processing, asked.queue.n_in_progress) == (0, 0)
        assert not asked.turns._next.locked() and not asked.turns._slots.locked()
        assert asked.turns._free_bytes == 16

    run(trial())
