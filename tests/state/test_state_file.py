"""State files: what is damaged, foreign or unreadable is refused, and what is there stays whole."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError, StateError, UsageError
from edgespec.files.sampled import HEAD_BYTES, SAMPLE_BYTES, sampled_digest
from edgespec.ports.text_request import TextRequest
from edgespec.state import file as state_file
from edgespec.state import keeper as state_keeper
from edgespec.state.file import MAGIC, check_place
from edgespec.state.keeper import StateKeeper, instruction_sets
from edgespec.state.prompt_cache import CachedPrompt, PromptCache
from engine_cases import GREEDY
from fake_model import FakeModel, random_language

N_VOCAB = 40
TEXT = list(range(30))
LANGUAGE = random_language(0, N_VOCAB, order=6)


class StatefulPair:
    """A target and a draft with an engine, and what keeps their state."""

    def __init__(self, has_draft: bool = True, n_ctx: int = 128, **options: object) -> None:
        self.target = FakeModel(LANGUAGE, N_VOCAB, n_ctx=n_ctx, **options)  # type: ignore[arg-type]
        self.draft = FakeModel(LANGUAGE, N_VOCAB, n_ctx=n_ctx) if has_draft else None
        self.engine = Engine(self.target, self.draft, EngineSettings(step_aside=False))
        self.keeper = StateKeeper(self.engine, self.target, self.draft)

    def write(
        self, prompt: list[int], n_tokens: int = 8, cache: PromptCache | None = None
    ) -> list[int]:
        """The text that follows a prompt."""
        keeper = CachedPrompt(cache, self.keeper) if cache else None
        request = self.engine.admit(TextRequest(tuple(prompt), GREEDY, n_tokens, keeper=keeper))
        self.result = [event.token for event in self.engine.run(request)]
        self.tally = request.tally
        return self.result


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The state of a text of some forty tokens."""
    path = tmp_path / "a.state"
    pair = StatefulPair()
    pair.write(TEXT)
    pair.keeper.save(path)
    return path


def test_another_session_goes_on_without_reading_the_text_again(kept: Path) -> None:
    first, other = StatefulPair(), StatefulPair()
    text = [*TEXT, *first.write(TEXT)]
    other.keeper.load(kept)
    assert other.write([*text, 3, 4]) == first.write([*text, 3, 4])
    assert not other.target.prefilled
    assert other.tally.reused_tokens == len(text) - 1


def test_state_is_its_owners_alone(kept: Path) -> None:
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_the_draft_goes_on_too(tmp_path: Path) -> None:
    before, pair = StatefulPair(), StatefulPair()
    before.write(TEXT, 48)  # of several rounds: after the last one the draft reads no more
    before.keeper.save(tmp_path / "a.state")
    n_tokens = pair.keeper.load(tmp_path / "a.state").n_draft_tokens
    assert pair.draft is not None
    assert pair.draft.committed_of(0) == n_tokens > len(TEXT)


def test_state_of_a_pair_serves_a_target_alone_and_the_other_way_round(
    kept: Path, tmp_path: Path
) -> None:
    alone = StatefulPair(has_draft=False)
    assert len(alone.keeper.load(kept).tokens) > len(TEXT)
    alone.keeper.save(tmp_path / "b.state")
    pair = StatefulPair()
    assert pair.keeper.load(tmp_path / "b.state").n_draft_tokens == 0
    assert pair.write([*TEXT, 1, 2]) == StatefulPair().write([*TEXT, 1, 2])


def test_nothing_to_keep_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no state to save"):
        StatefulPair().keeper.save(tmp_path / "a.state")
    assert not list(tmp_path.iterdir())


def test_state_of_a_processor_that_rounds_otherwise_is_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_keeper, "instruction_sets", lambda: "avx2 fma")
    with pytest.raises(StateError, match="this one, which has avx2 fma, may round otherwise"):
        StatefulPair().keeper.load(kept)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("model name: x\nflags\t: fpu fma avx2 sse smep\nflags\t: other\n", "avx2 fma"),
        ("Features\t: fp asimd bf16 crc32\n", "asimd bf16"),
        ("nothing\n", platform.machine()),
    ],
)
def test_instruction_sets_are_what_libraries_choose_kernels_by(
    tmp_path: Path, cpuinfo: str, expected: str
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    assert instruction_sets(tmp_path) == expected


@pytest.mark.slow
def test_every_flipped_bit_is_found(kept: Path) -> None:
    content = kept.read_bytes()
    pair = StatefulPair()
    pair.write([7, 8, 9])
    held = pair.engine.committed
    for place in range(0, len(content), 3):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        kept.write_bytes(changed)
        with pytest.raises(StateError):
            pair.keeper.load(kept)
    assert pair.engine.committed == held


def test_every_cut_is_found(kept: Path) -> None:
    content = kept.read_bytes()
    pair = StatefulPair()
    for length in range(1, len(content), 7):
        kept.write_bytes(content[:length])
        with pytest.raises(StateError):
            pair.keeper.load(kept)


def test_more_than_there_should_be_is_found(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes() + b"x")
    with pytest.raises(StateError, match="damaged"):
        StatefulPair().keeper.load(kept)


def test_a_file_that_changes_while_it_is_read_leaves_a_session_that_works(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = StatefulPair()
    peek = pair.keeper.peek

    def peek_and_change(path: Path) -> object:
        found = peek(path)
        content = bytearray(path.read_bytes())
        content[-40] ^= 1
        path.write_bytes(content)
        return found

    monkeypatch.setattr(pair.keeper, "peek", peek_and_change)
    with pytest.raises(StateError, match="damaged"):
        pair.keeper.load(kept)
    assert pair.engine.committed == ()
    assert pair.write(TEXT) == StatefulPair().write(TEXT)


def test_state_of_other_weights_or_settings_is_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StateError, match="--ctx-size 128, where 64 is used now"):
        StatefulPair(n_ctx=64).keeper.load(kept)
    monkeypatch.setattr(state_keeper, "sampled_digest", lambda files: "another")
    with pytest.raises(StateError, match="of other weights than those of fake"):
        StatefulPair().keeper.load(kept)


def test_state_of_another_version_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_keeper, "installed_version", lambda: "99")
    with pytest.raises(StateError, match="and this is 99"):
        StatefulPair().keeper.load(kept)


@pytest.mark.parametrize("content", [b"dear diary", b"GGUF" * 100, MAGIC[:-2]])
def test_what_is_no_state_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    pair = StatefulPair()
    pair.write(TEXT)
    for call in (pair.keeper.load, pair.keeper.save, PromptCache):
        with pytest.raises(StateError, match="not a state file of this edgespec"):
            call(path)
    assert path.read_bytes() == content


def test_where_there_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there is no state file at"):
        StatefulPair().keeper.load(tmp_path / "a.state")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def below_nothing(path: Path) -> None:
    """It is not there, and neither is its folder."""


@pytest.mark.parametrize("make", [a_folder, a_fifo, below_nothing])
def test_places_where_no_state_can_be_are_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x" if make is not below_nothing else tmp_path / "y" / "x"
    make(path)
    with pytest.raises(StateError, match=r"cannot be read|is no folder"):
        check_place(path)


def test_a_full_disk_is_one_error_and_leaves_what_was_there(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = kept.read_bytes()
    pair = StatefulPair()
    pair.write(TEXT[:12])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgespecError, match="cannot be written: No space left"):
        pair.keeper.save(kept)
    assert kept.read_bytes() == content
    assert list(kept.parent.iterdir()) == [kept]


def test_a_piece_that_memory_does_not_hold_is_refused(kept: Path) -> None:
    pair = StatefulPair()
    pair.keeper._room_bytes = 3
    with pytest.raises(UsageError, match=r"one piece of 4 bytes.*state_files=True"):
        pair.keeper.load(kept)


# One file for one prompt after the other


def test_a_prompt_cache_appears_with_the_first_prompt_and_serves_the_next(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    text = StatefulPair().write(TEXT, cache=PromptCache(path))
    other = StatefulPair()
    assert other.write(TEXT, cache=PromptCache(path)) == text
    assert other.tally.reused_tokens == len(TEXT) - 1
    assert other.tally.saved_passes == 1
    assert not other.target.prefilled


def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    path.touch()
    StatefulPair().write(TEXT, cache=PromptCache(path))
    assert check_place(path)


def test_what_the_cache_saves_nothing_of_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    StatefulPair().write(TEXT, cache=PromptCache(path))
    written = path.stat().st_mtime_ns, path.stat().st_ino
    StatefulPair().write([*TEXT, 1, 2], cache=PromptCache(path))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written


def test_another_prompt_takes_the_place_of_the_first_which_a_note_says(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    StatefulPair().write(TEXT, cache=PromptCache(path))
    pair = StatefulPair()
    pair.write([9, 9, 9, 9, 9], cache=PromptCache(path))
    assert [*pair.tally.notes.values()] == [
        f"{path} held 29 tokens of another text; now it holds the 4 of this prompt"
    ]
    assert pair.keeper.peek(path).tokens == (9, 9, 9, 9)


def test_a_cache_that_is_only_read_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    StatefulPair().write(TEXT, cache=PromptCache(path))
    content = path.read_bytes()
    StatefulPair().write([9, 9, 9, 9, 9], cache=PromptCache(path, read_only=True))
    assert path.read_bytes() == content


def test_recurrent_state_of_another_text_is_of_no_use(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    recurrent = {"has_draft": False, "tree_capable": False}
    StatefulPair(**recurrent).write(TEXT, cache=PromptCache(path))  # type: ignore[arg-type]
    longer, other = StatefulPair(**recurrent), StatefulPair(**recurrent)  # type: ignore[arg-type]
    longer.write([*TEXT, 5], cache=PromptCache(path))
    assert longer.tally.reused_tokens == len(TEXT) - 1
    other.write([*TEXT[:20], 5], cache=PromptCache(path))
    assert other.tally.reused_tokens == 0


def test_a_cache_that_cannot_be_written_costs_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PromptCache(tmp_path / "p.state")

    def full(path: Path) -> object:
        raise EdgespecError("no space")

    pair = StatefulPair()
    monkeypatch.setattr(pair.keeper, "save", full)
    assert pair.write(TEXT, cache=cache) == StatefulPair().write(TEXT)
    assert str(cache.failure) == "no space"
    assert [*pair.tally.notes.values()] == ["the prompt cache was not written: no space"]


def test_fingerprints_tell_files_of_one_shape_and_age_apart(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    told = set()
    for name, place in (("a", None), ("b", 5), ("c", 2 << 20)):
        changed = content.copy()
        if place is not None:
            changed[place : place + 65536] += 1
        changed.tofile(tmp_path / name)
        os.utime(tmp_path / name, ns=(1, 1))
        told.add(sampled_digest([tmp_path / name]))
    assert len(told) == 3
    shutil.copy2(tmp_path / "a", tmp_path / "d")
    assert sampled_digest([tmp_path / "d"]) in told


def test_a_byte_between_the_samples_makes_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(8 << 20))
    os.utime(path, ns=(1, 1))
    before = sampled_digest([path])
    with path.open("r+b") as file:
        file.seek(HEAD_BYTES + SAMPLE_BYTES + 14_000)
        file.write(b"x")
    changed = sampled_digest([path])
    os.utime(path, ns=(1, 1))
    assert sampled_digest([path]) == before, "the samples alone would not have shown it"
    assert changed != before


def test_a_header_that_is_too_long_is_not_read(kept: Path) -> None:
    content = bytearray(kept.read_bytes())
    content[len(MAGIC) : len(MAGIC) + 8] = (1 << 40).to_bytes(8, "little")
    kept.write_bytes(content)
    with pytest.raises(StateError, match="damaged"), state_file.opened(kept):
        pass
