"""Prefixes on disk: found by their longest common prefix, whole or not at all, never another's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import N_LEFT, Text
from edgespec.errors import StateError
from edgespec.ports.text_request import TextRequest
from edgespec.state import blocks
from edgespec.state.blocks import SUFFIX, BlockFolder
from edgespec.state.prefix_cache import PrefixCache
from engine_cases import GREEDY
from engine_cases import AskedEngine as Engine
from fake_model import FAKE_BLOCK_TOKENS, FakeModel, random_language

N_VOCAB = 40
LANGUAGE = random_language(0, N_VOCAB, order=6)
TEXT = [(7 * n * n + n) % N_VOCAB for n in range(100)]
SIZE = 4 << 20


class StoringEngine:
    """An engine of a fresh process, whose texts are stored in a folder."""

    def __init__(
        self,
        folder: Path,
        n_texts: int = 1,
        has_draft: bool = False,
        size: int = SIZE,
        n_ctx: int = 256,
        **options: object,
    ) -> None:
        self.target = FakeModel(LANGUAGE, N_VOCAB, n_ctx=n_ctx, n_texts=n_texts, **options)  # type: ignore[arg-type]
        self.draft = FakeModel(LANGUAGE, N_VOCAB, n_ctx=n_ctx) if has_draft else None
        self.store = PrefixCache(folder, size, self.target, self.draft)
        self.engine = Engine(
            self.target, self.draft, EngineSettings(step_aside=False), prefixes=self.store.place
        )

    def write(self, prompt: list[int], client: str = "", n_tokens: int = 8) -> list[int]:
        request = self.engine.admit(TextRequest(tuple(prompt), GREEDY, n_tokens, client=client))
        tokens = [event.token for event in self.engine.ask(request)]
        self.result = request.result()
        return tokens

    @property
    def reused(self) -> int:
        return self.result.reused_tokens


def once(folder: Path, prompt: list[int], client: str = "", **options: object) -> StoringEngine:
    """A process that writes one text and ends."""
    process = StoringEngine(folder, **options)  # type: ignore[arg-type]
    with process.engine:
        process.text = process.write(prompt, client)  # type: ignore[attr-defined]
    return process


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*" + SUFFIX))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


def whole(n_tokens: int) -> int:
    return n_tokens - n_tokens % FAKE_BLOCK_TOKENS


def test_a_prompt_is_known_after_a_restart(folder: Path) -> None:
    first = once(folder, TEXT)
    second = once(folder, TEXT)
    assert (first.reused, second.reused) == (0, whole(len(TEXT) - 1))
    assert second.text == first.text  # type: ignore[attr-defined]


def test_an_answer_is_known_as_a_part_of_the_next_prompt(folder: Path) -> None:
    first = once(folder, TEXT)
    longer = [*TEXT, *first.text, 1, 2, 3]  # type: ignore[attr-defined]
    assert once(folder, longer).reused >= whole(len(TEXT) + len(first.text) - 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("n_shared", [1, 3, 4, 63, 64, 65, 98])
def test_the_longest_common_prefix_is_found(folder: Path, n_shared: int) -> None:
    once(folder, TEXT)
    other = [*TEXT[:n_shared], (TEXT[n_shared] + 1) % N_VOCAB, *TEXT[n_shared + 1 :]]
    partly = once(folder, other)
    assert partly.reused == whole(n_shared)
    assert partly.text == StoringEngine(folder / "empty").write(other)  # type: ignore[attr-defined]


def test_a_text_that_loses_its_slot_is_known_later(folder: Path) -> None:
    process = StoringEngine(folder)
    with process.engine:
        process.write(TEXT)
        process.write(TEXT[::-1])
        process.write(TEXT)
        assert process.reused == whole(len(TEXT) - 1)


def test_any_slot_takes_a_stored_text(folder: Path) -> None:
    once(folder, TEXT)
    process = StoringEngine(folder, n_texts=2)
    with process.engine:
        process.write(TEXT[::-1])
        process.write(TEXT)
        assert process.reused == whole(len(TEXT) - 1)
        assert process.target.text(1)[: len(TEXT)] == tuple(TEXT)


def test_a_draft_continues_too(folder: Path) -> None:
    once(folder, TEXT, has_draft=True)
    process = once(folder, TEXT, has_draft=True)
    assert process.draft is not None
    assert sum(process.draft.prefilled) <= FAKE_BLOCK_TOKENS


def test_stored_blocks_of_a_draft_are_not_put_behind_its_moved_window(folder: Path) -> None:
    process = StoringEngine(folder, has_draft=True)
    long = [(7 * n * n + n + n // 9) % N_VOCAB for n in range(230)]
    draft = process.draft = FakeModel(LANGUAGE, N_VOCAB, n_ctx=128)
    process.target = FakeModel(LANGUAGE, N_VOCAB, n_ctx=512)
    process.store = PrefixCache(folder, SIZE, process.target, draft)
    rules = EngineSettings(step_aside=False, lookup=False)
    process.engine = Engine(process.target, draft, rules, prefixes=process.store.place)
    (source,) = process.engine.sources
    read, behind = draft.read_block, list[int]()

    def read_block(content: memoryview, slot: int) -> None:
        behind.append(source.n_read(0) - source.n_held(0))  # type: ignore[attr-defined]
        read(content, slot)

    draft.read_block = read_block  # type: ignore[method-assign]
    with process.engine:
        for prompt in (long[:66], [*long, *[1] * 12], [*long, *[2] * 12], [*long, *[1] * 14]):
            process.write(prompt, n_tokens=6)
    assert behind == [0] * len(behind)


def test_another_clients_text_is_computed_again(folder: Path) -> None:
    once(folder, TEXT, client="anna")
    assert once(folder, TEXT, client="bert").reused == 0
    assert once(folder, TEXT, client="anna").reused > 0


def test_another_clients_slot_is_not_continued(folder: Path) -> None:
    process = StoringEngine(folder)
    with process.engine:
        process.write(TEXT, "anna")
        process.write(TEXT, "bert")
        assert process.reused == 0
        process.write(TEXT, "bert")
        assert process.reused == len(TEXT) - 1


def test_a_text_that_ends_before_its_first_pass_is_not_stored_for_another(folder: Path) -> None:
    process = StoringEngine(folder, n_texts=2)
    engine, begin = process.engine, process.engine.begin

    def begin_and_leave(text: Text) -> None:
        begin(text)
        text.is_cancelled = True

    with engine:
        first = engine.ask(engine.admit(TextRequest(tuple(TEXT), GREEDY, 50, client="anna")))
        next(first)
        process.write(TEXT[::-1], "bert")
        engine.begin = begin_and_leave  # type: ignore[method-assign]
        process.write([*TEXT, 1], "anna")
        engine.begin = begin  # type: ignore[method-assign]
        list(first)
    assert once(folder, TEXT, client="bert").reused == 0
    assert once(folder, TEXT, client="anna").reused > 0


def test_what_texts_share_is_stored_once(folder: Path) -> None:
    once(folder, TEXT)
    n_before = len(files(folder))
    once(folder, [*TEXT[:80], *TEXT[:20]])
    assert len(files(folder)) - n_before <= 1 + 28 // FAKE_BLOCK_TOKENS


def test_a_damaged_block_is_deleted_and_stored_again(folder: Path) -> None:
    first = once(folder, TEXT)
    for path in files(folder):
        content = bytearray(path.read_bytes())
        content[70] ^= 1
        path.write_bytes(content)
    second = once(folder, TEXT)
    assert (second.reused, second.text) == (0, first.text)  # type: ignore[attr-defined]
    assert once(folder, TEXT).reused == whole(len(TEXT) - 1)


@pytest.mark.parametrize("length", [0, 10, 64, 70])
def test_every_cut_is_found(folder: Path, length: int) -> None:
    store = BlockFolder(folder, SIZE)
    store.write("a", memoryview(b"content" * 10))
    os.truncate(folder / ("a" + SUFFIX), length)
    with pytest.raises(StateError):
        store.read("a")


def test_the_least_recently_used_go_first(folder: Path) -> None:
    store = BlockFolder(folder, 10 * 4096)
    for n, name in enumerate("abcdefghij"):
        store.write(name, memoryview(b"content"))
        os.utime(folder / (name + SUFFIX), ns=(n, n))
    store.touch(["a"])
    store.write("k", memoryview(b"content"))
    assert [path.name[0] for path in files(folder)] == list("adefghijk")


def test_a_folder_never_exceeds_its_size(folder: Path) -> None:
    process = StoringEngine(folder, size=20 * 4096)
    with process.engine:
        for n in range(6):
            process.write([(n + token) % N_VOCAB for token in TEXT])
    assert sum(path.stat().st_size for path in files(folder)) <= 20 * 4096


def test_unfinished_blocks_of_killed_processes_are_deleted(folder: Path) -> None:
    folder.mkdir()
    part = folder / ".0123.edgespec-part"
    part.write_bytes(b"half")
    os.utime(part, (1, 1))
    BlockFolder(folder, SIZE)
    assert not part.exists()


def test_a_full_disk_is_one_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(buffer: object, create: object, n_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blocks.DirectBuffer, "write", full)
    process = StoringEngine(folder)
    with process.engine:
        first = process.write(TEXT)
        process.write(TEXT[::-1])
        notes = [note for note in process.result.notes if "prompt cache" in note]
        assert process.write(TEXT) == first
        notes += [note for note in process.result.notes if "prompt cache" in note]
    (note,) = notes
    assert "No space left" in note
    assert list(folder.iterdir()) == []


RECURRENT = {"tree_capable": False, "n_ctx": 512}


def test_a_recurrent_text_goes_on_where_a_prompt_ended(folder: Path) -> None:
    first = once(folder, TEXT, **RECURRENT)
    again = once(folder, TEXT, **RECURRENT)
    longer = once(folder, [*TEXT, *TEXT[:50]], **RECURRENT)
    assert again.text == first.text  # type: ignore[attr-defined]
    assert again.reused == longer.reused >= len(TEXT) - 1 - N_LEFT


@pytest.mark.parametrize("n", range(7))
def test_a_state_with_a_damaged_piece_is_computed_and_stored_again(folder: Path, n: int) -> None:
    first = once(folder, TEXT, **RECURRENT)
    path = [path for path in files(folder) if "-" in path.name.removesuffix(SUFFIX)][n]
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    second = once(folder, TEXT, **RECURRENT)
    assert (second.reused, second.text) == (0, first.text)  # type: ignore[attr-defined]
    assert once(folder, TEXT, **RECURRENT).reused > 0


class Hybrid(FakeModel):
    """Attention whose blocks come without the recurrent state beside it."""

    def __init__(self) -> None:
        super().__init__(LANGUAGE, N_VOCAB, n_ctx=512, tree_capable=False)
        self.info = replace(self.info, block_tokens=4)
        self.has_state, self.on_block = True, lambda: None

    def read_block(self, content: memoryview, slot: int) -> None:
        super().read_block(content, slot)
        self.has_state = False
        self.on_block()

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        self._texts[slot].committed.clear()
        super().read_checkpoint(n_tokens, pieces, slot)
        self.has_state = True

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        super().truncate(n_tokens, slot)
        self.has_state |= not self.committed_of(slot)

    def _begin(self) -> None:
        super()._begin()
        assert self.has_state


def test_blocks_without_the_recurrent_state_are_left_by_a_text_that_is_cancelled(
    folder: Path,
) -> None:
    target = Hybrid()
    store = PrefixCache(folder, SIZE, target, None)
    longer = [*TEXT, *TEXT[::-1]]
    with Engine(target, prefixes=store.place) as engine:

        def ask(prompt: list[int]) -> Generation:
            return engine.ask(engine.admit(TextRequest(tuple(prompt), GREEDY, 4)))

        for prompt in (TEXT, longer, longer[::3], TEXT):
            list(ask(prompt))
        text = ask(longer)
        target.on_block = lambda: text.cancel() if target.committed_of(0) == 8 else None
        list(text)
        target.on_block = lambda: None
        list(ask([*TEXT[:30], *[5] * 40]))


@pytest.fixture(autouse=True)
def nothing_unfinished(folder: Path) -> Iterator[None]:
    yield
    if folder.is_dir():
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
