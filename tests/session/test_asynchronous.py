"""A session in an event loop: it never waits, and whoever gives up ends the generation."""

import asyncio
import threading

import pytest

import edgespec
from server_running import pair

MESSAGES = [{"role": "user", "content": "write gcd"}]


@pytest.fixture(scope="module")
def session():
    with pair() as loaded:
        yield loaded


def test_the_twins_write_what_the_session_writes(session):
    async def twins():
        twin = edgespec.AsyncSession(session)
        async with twin.stream("def f(", max_tokens=8) as events:
            streamed = "".join([event.text async for event in events])
        generated = await twin.generate("def f(", max_tokens=8)
        return streamed, generated.text

    text = session.generate("def f(", max_tokens=8).text
    assert asyncio.run(twins()) == (text, text)


def test_several_at_once_get_their_own_answers(session):
    async def ask(twin, n: int) -> str:
        message = {"role": "user", "content": f"number {n}"}
        async with twin.chat([message], max_tokens=6) as events:
            return "".join([event.text async for event in events])

    async def all_at_once():
        twin = edgespec.AsyncSession(session)
        return await asyncio.gather(*(ask(twin, n) for n in range(6)))

    for n, answer in enumerate(asyncio.run(all_at_once())):
        with session.chat([{"role": "user", "content": f"number {n}"}], max_tokens=6) as alone:
            assert answer == "".join(event.text for event in alone)


def test_the_loop_goes_on_while_a_text_is_written(session):
    async def count_beside() -> int:
        n_turns = 0
        task = asyncio.create_task(edgespec.AsyncSession(session).generate("a", max_tokens=60))
        while not task.done():
            n_turns += 1
            await asyncio.sleep(0)
        await task
        return n_turns

    assert asyncio.run(count_beside()) > 60


def test_a_task_that_is_cancelled_ends_its_generation(session):
    async def give_up() -> None:
        twin = edgespec.AsyncSession(session)
        task = asyncio.create_task(twin.generate("def f(", max_tokens=900))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await twin.generate("a", max_tokens=1)).tokens

    asyncio.run(give_up())


@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_is_cancelled_as_a_token_comes_ends_its_generation(session, turns):
    async def give_up() -> None:
        with session.stream("def f(", max_tokens=900) as events:
            await anext(events)
            task = asyncio.create_task(anext(events))
            while not events._came.is_set():
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    asyncio.run(give_up())


def test_a_stream_that_is_left_early_leaves_the_session_to_the_next(session):
    async def leave() -> None:
        twin = edgespec.AsyncSession(session)
        async with twin.chat(MESSAGES, max_tokens=900) as events:
            async for _ in events:
                break
        assert (await twin.generate("a", max_tokens=1)).tokens

    asyncio.run(leave())


def test_a_generation_is_read_in_a_loop_without_a_thread_of_its_own(session):
    async def read():
        n_before = threading.active_count()
        with session.stream("def f(", max_tokens=8) as generation:
            texts = [event.text async for event in generation]
            return "".join(texts), generation.result.text, threading.active_count() - n_before

    text = session.generate("def f(", max_tokens=8).text
    assert asyncio.run(read()) == (text, text, 0)


def test_a_task_that_waited_too_long_finds_the_token_later(session):
    may_begin = threading.Event()

    async def read() -> int:
        n_late = 0
        session._engine.after_pass(may_begin.wait)
        async with edgespec.AsyncSession(session).stream("def f(", max_tokens=8) as events:
            while True:
                try:
                    await asyncio.wait_for(anext(events), 0.001)
                except TimeoutError:
                    n_late += 1
                    may_begin.set()
                except StopAsyncIteration:
                    return len(events.result.tokens) if n_late else 0

    assert asyncio.run(read()) == 8
