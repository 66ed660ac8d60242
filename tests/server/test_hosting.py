"""Several models under one budget: who is in memory, and who waits. No model is real here."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from edgespec.completions.protocols.model_names import HostedModel, model_named
from edgespec.completions.refusals import Refusal
from edgespec.errors import Cancelled, ModelError, setting
from edgespec.server.hosting import ModelHost
from sentences import refuses


@dataclass(eq=False)
class FakeServed:
    name: str
    world: World
    is_cancelled: bool = False

    @property
    def model(self) -> FakeServed:
        return self

    def cancel(self) -> None:
        self.is_cancelled = True

    def close(self) -> None:
        self.world.in_memory.remove(self.name)
        self.world.events.append(f"-{self.name}")


class World:
    """Two models that write and one that embeds; remembers what is loaded and unloaded."""

    def __init__(self, leaves_room: bool = True, together: bool = False) -> None:
        self.a, self.b = (HostedModel(f"{name}.gguf", stays=together) for name in "ab")
        self.vectors = HostedModel("v.gguf", embeds=True, stays=leaves_room or together)
        self.in_memory: list[str] = []
        self.events: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.holds_loading: threading.Event | None = None
        self.host = ModelHost((self.a, self.b, self.vectors), self._load)

    def _load(self, model: HostedModel, progress: Callable) -> FakeServed:
        progress("reading weights", 0.25)
        while self.holds_loading is not None and not self.holds_loading.wait(0.001):
            progress("reading weights", 0.5)
        if model.name in self.fails:
            raise self.fails[model.name]
        stays = {one.name for one in self.host.models if one.stays}
        assert model.stays or {*self.in_memory} <= stays
        self.in_memory.append(model.name)
        self.events.append(f"+{model.name}")
        return FakeServed(model.name, self)

    async def ask(self, model: HostedModel, held: asyncio.Event | None = None) -> str:
        async with self.host.using(model) as served:
            if held is not None:
                await held.wait()
            assert served.name in self.in_memory
            self.events.append(f"={served.name}")
            return served.name


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.host.close()
    assert not made.in_memory


def run(steps: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(steps, 60))  # only ends a test that would wait for ever


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def test_the_model_that_is_asked_for_is_loaded_and_the_other_leaves_first(world: World) -> None:
    async def steps() -> None:
        await world.ask(world.a)
        await world.ask(world.b)

    run(steps())
    assert world.events == ["+a.gguf", "=a.gguf", "-a.gguf", "+b.gguf", "=b.gguf"]


def test_a_model_leaves_only_after_the_requests_to_it(world: World) -> None:
    async def steps() -> None:
        held = asyncio.Event()
        first = asyncio.ensure_future(world.ask(world.a, held))
        await until(lambda: "+a.gguf" in world.events)
        second = asyncio.ensure_future(world.ask(world.b))
        await asyncio.sleep(0.01)
        assert world.in_memory == ["a.gguf"]
        held.set()
        assert await first == "a.gguf"
        assert await second == "b.gguf"

    run(steps())


def test_whoever_comes_behind_a_request_to_another_model_does_not_keep_it_waiting(
    world: World,
) -> None:
    async def steps() -> None:
        held = asyncio.Event()
        first = asyncio.ensure_future(world.ask(world.a, held))
        await until(lambda: "+a.gguf" in world.events and not world.host._line)
        second = asyncio.ensure_future(world.ask(world.b))
        await asyncio.sleep(0)
        third = asyncio.ensure_future(world.ask(world.a))
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(first, second, third)

    run(steps())
    asked = [event for event in world.events if event.startswith("=")]
    assert asked == ["=a.gguf", "=b.gguf", "=a.gguf"]


def test_all_who_wait_for_a_model_are_answered_before_it_leaves_again(world: World) -> None:
    async def steps() -> None:
        await world.ask(world.a)
        asked = (world.b, world.a, world.b, world.a)
        await asyncio.gather(*(world.ask(model) for model in asked))

    run(steps())
    assert world.host.n_loads == 3


def test_an_embedding_model_comes_beside_one_that_leaves_room(world: World) -> None:
    async def steps() -> None:
        await world.ask(world.a)
        await world.ask(world.vectors)

    run(steps())
    assert world.in_memory == ["a.gguf", "v.gguf"]


def test_an_embedding_model_comes_instead_of_one_that_leaves_no_room() -> None:
    world = World(leaves_room=False)

    async def steps() -> None:
        await world.ask(world.a)
        await world.ask(world.vectors)

    run(steps())
    assert world.in_memory == ["v.gguf"]
    world.host.close()


def test_a_model_that_cannot_be_loaded_is_an_error_for_its_requests_only(world: World) -> None:
    damaged = f"b.gguf is damaged:\n download it again, or give another {setting.model}"
    world.fails["b.gguf"] = ModelError(damaged)

    async def steps() -> None:
        with refuses(Refusal) as e:
            await world.ask(world.b)
        assert e.value.status == 500
        assert str(e.value).endswith("download it again, or give another --model")
        assert await world.ask(world.a) == "a.gguf"

    run(steps())
    assert world.host.state(world.b)["failed"]


def test_nobody_leaves_for_a_model_that_is_known_not_to_work(world: World) -> None:
    world.b.error, world.b.is_unusable = "needs 9 GiB", True

    async def steps() -> None:
        await world.ask(world.a)
        with refuses(Refusal):
            await world.ask(world.b)

    run(steps())
    assert world.in_memory == ["a.gguf"]


def test_a_model_that_one_request_began_to_load_is_there_for_the_next(world: World) -> None:
    async def steps() -> None:
        world.holds_loading = threading.Event()
        first = asyncio.ensure_future(world.ask(world.a))
        await until(lambda: world.host.state(world.a)["value"] == "loading")
        first.cancel()
        await asyncio.wait({first})
        world.holds_loading.set()
        assert await world.ask(world.a) == "a.gguf"

    run(steps())
    assert world.host.n_loads == 1


def test_the_end_of_the_server_ends_loading(world: World) -> None:
    async def steps() -> None:
        world.holds_loading = threading.Event()
        asked = asyncio.ensure_future(world.ask(world.a))
        await until(lambda: world.host.state(world.a)["value"] == "loading")
        world.host.stop()
        with pytest.raises(Cancelled):
            await asked

    run(steps())
    assert world.in_memory == []


def test_a_request_that_is_given_up_while_it_waits_holds_nothing(world: World) -> None:
    async def steps() -> None:
        held = asyncio.Event()
        first = asyncio.ensure_future(world.ask(world.a, held))
        await until(lambda: "+a.gguf" in world.events)
        second = asyncio.ensure_future(world.ask(world.b))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        held.set()
        await first
        assert await world.ask(world.a) == "a.gguf"

    run(steps())
    assert world.events.count("+a.gguf") == 1


def test_an_unknown_name_is_a_404_that_names_the_models(world: World) -> None:
    with refuses(Refusal) as refused:
        model_named(world.host.models, "c")
    assert refused.value.status == 404


@pytest.mark.parametrize(("name", "embeds"), [("a", True), ("v", False)])
def test_a_model_of_the_other_kind_is_refused(world: World, name: str, embeds: bool) -> None:
    with pytest.raises(Refusal) as refused:
        model_named(world.host.models, name, embeds)
    assert refused.value.status == 400


def test_a_request_without_a_name_is_refused_where_it_could_mean_several(world: World) -> None:
    """Otherwise its text would depend on which model happens to be loaded."""
    with refuses(Refusal) as refused:
        model_named(world.host.models, None, embeds=False)
    assert (refused.value.status, refused.value.param) == (400, "model")


def test_models_that_the_budget_holds_stay_and_write_at_once() -> None:
    world = World(together=True)

    async def steps() -> None:
        held = asyncio.Event()
        first = asyncio.create_task(world.ask(world.a, held))
        await until(lambda: world.a.served is not None)
        assert await world.ask(world.b) == "b.gguf"
        assert await world.ask(world.vectors) == "v.gguf"
        held.set()
        await first
        await world.ask(world.a)

    run(steps())
    assert [event for event in world.events if event[0] in "+-"] == [
        "+a.gguf",
        "+b.gguf",
        "+v.gguf",
    ]
    world.host.close()
    assert not world.in_memory


@pytest.mark.parametrize("seed", range(10))
def test_whatever_clients_do_everybody_is_answered_and_no_model_stays_in_use(seed: int) -> None:
    chance = random.Random(seed)
    world = World(leaves_room=chance.random() < 0.5, together=chance.random() < 0.3)
    world.fails = {"b.gguf": ModelError("damaged")} if chance.random() < 0.3 else {}

    async def client(model: HostedModel) -> None:
        with suppress(Refusal):
            async with world.host.using(model) as served:
                assert served.name in world.in_memory
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
                assert served.name in world.in_memory

    async def steps() -> None:
        models = (world.a, world.a, world.b, world.vectors)
        asked = [asyncio.ensure_future(client(chance.choice(models))) for _ in range(20)]
        for _ in range(40):
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
            asked.append(asyncio.ensure_future(client(chance.choice(models))))
            if chance.random() < 0.3:
                chance.choice(asked).cancel()
        for ended in await asyncio.gather(*asked, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError)

    run(steps())
    assert not world.host._line
    assert not any(model.n_users for model in world.host.models)
    world.host.close()
    assert not world.in_memory
