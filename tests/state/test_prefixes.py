"""Prefixes on disk: found by their longest common prefix, whole or not at all, never another's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.text import N_LEFT
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


@pytest.fixture(autouse=True)
def nothing_unfinished(folder: Path) -> Iterator[None]:
    yield
    if folder.is_dir():
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
