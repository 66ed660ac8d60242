"""Drafts made from the target: where they are kept, and what is refused before anything is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.errors import BudgetError, ModelError
from edgespec.files import cache_folder
from edgespec.files.cache_folder import lower_parts
from edgespec.files.json_file import JsonFile
from edgespec.files.sampled import sampled_digest
from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.pinning import SegmentSize
from edgespec.models.embedded import embedded_pair
from edgespec.paging import disk_speed
from edgespec.session import own_draft, session, strategy
from edgespec.settings.config import LoadSettings
from edgespec.settings.parsing import OWN_DRAFT
from edgespec.values import DraftSizes
from sentences import hold_sentence, refuses

TARGET = embedded_pair().target


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, and a disk of one speed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(disk_speed, "bytes_per_second", lambda *given, **limit: 1e8)
    return cache_folder.make_folder()


def kept(cache: Path) -> list[str]:
    return sorted(
        path.name for path in cache.rglob("*") if "self" in path.name or ".part" in path.name
    )


def test_the_name_self_stands_for_it() -> None:
    assert LoadSettings(model=TARGET, draft="self").draft == OWN_DRAFT
    assert LoadSettings(model=TARGET, draft=Path("self")).draft == Path("self")


def test_the_command_line_makes_it_of_the_model_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["-m", str(TARGET), "-md", "self", "--memory-budget", "1GiB"]
    for command in (["plan"], ["plan", "--json"], ["generate", "-p", "Once", "-n", "1"]):
        assert command_line.main([*command, *own]) == 0
        assert capsys.readouterr().err.count("would hardly be faster than none") == 1
    assert command_line.main(["models", "show", "self"]) == 3
    hold_sentence(capsys.readouterr().err)


def test_a_target_that_fits_gets_none(cache: Path) -> None:
    alone = session.plan(LoadSettings(model=TARGET, draft="self", memory_budget="1GiB"))
    assert not alone.has_draft
    assert sum("fits into 1.0 GiB" in note for note in alone.notes) == 1
    assert kept(cache) == []


def test_one_that_was_measured_to_be_slower_is_left_out_without_another_measurement(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(target: Path, *args: object) -> None:
        made.append(target)
        raise own_draft.NoGain("it was slower than none", is_measured=True)

    monkeypatch.setattr(own_draft, "make", make)
    settings = LoadSettings(model=TARGET, draft="self", memory_budget="1GiB")
    notes = [session.plan(settings).notes for _ in range(2)]
    assert made == [TARGET]
    assert "no draft is used: it was slower than none" in notes[0]
    assert any("measured before" in note for note in notes[1])
    with session.load(settings) as loaded:
        assert loaded.draft is None
        assert set(notes[1]) <= set(loaded.plan.notes)


def test_one_that_a_large_process_has_no_room_for_is_not_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load had made it again, for a minute, where the process was larger than its maker's."""
    made: list[int] = []

    def make(
        target: Path, place: Callable[[str], Path], settings: LoadSettings, *args: object
    ) -> object:
        made.append(int(settings.memory_budget))
        shutil.copy(embedded_pair().draft, place("q2_k"))
        return own_draft.OwnDraft("q2_k", 1, made[-1], 5.0, 2.0, 1.0, 1e8)

    def planned(settings: LoadSettings, **others: object) -> None:
        raise BudgetError("811 MiB are needed")

    monkeypatch.setattr(own_draft, "make", make)
    monkeypatch.setattr(session, "plan", planned)
    for budget_bytes in (1000 * MIB, 1001 * MIB, 900 * MIB, 1000 * MIB):
        settings = LoadSettings(model=TARGET, draft="self", memory_budget=budget_bytes)
        alone, (note,) = own_draft.settled(settings)
        assert alone.draft is None
        hold_sentence(note)
    assert made == [1000 * MIB, 900 * MIB]


class Tool:
    """A tool whose drafts are those of a model with 1,300 million weights."""

    def draft_sizes(self, target: Path) -> list[DraftSizes]:
        kinds = strategy.COARSENESSES
        return [DraftSizes(one.kind, one.bits, int(1.3e9 * one.bits / 8)) for one in kinds]


def plan(budget_mib: int, smallest_mib: int = 150) -> MemoryPlan:
    """A plan of a target of 1,800 MiB alone that pins what the budget leaves."""
    n_pinned = max(0, min(1800, budget_mib - smallest_mib)) // 10
    segments = tuple(SegmentSize(f"{n}", 10 * MIB, 10 * MIB) for n in range(180))
    pinned, rows = frozenset(range(n_pinned)), (MemoryRow("target", "KV cache", 28 * MIB),)
    is_paged, smallest = n_pinned < len(segments), smallest_mib * MIB
    return MemoryPlan(
        budget_mib * MIB, rows, segments, pinned, 0, is_paged, smallest, ctx_size=4096
    )


def choose(budget_mib: int, disk: float) -> str:
    """Kind of the draft that is chosen beside it."""
    return own_draft._choose(TARGET, plan(budget_mib), Tool(), disk).draft  # type: ignore[arg-type]


def test_one_that_would_pay_and_has_no_room_is_refused_with_the_memory_it_takes() -> None:
    assert choose(1000, 1e8)
    with refuses(BudgetError):
        choose(300, 1e8)


def test_the_command_line_uses_one_that_was_made_for_such_a_budget_and_disk(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sampled_digest([TARGET], with_times=False)[: own_draft.DIGITS]
    draft = cache / f"{TARGET.stem}-self-q2_k-{digest}.gguf"
    draft.symlink_to(embedded_pair().draft)
    made = {"kind": "q2_k", "disk_bytes_per_s": 1e9}
    JsonFile(cache_folder.drafts(), digest).write({"16/16": made})
    plan = ["plan", "-m", str(TARGET), "--memory-budget"]
    for budget, disk, is_used in (("1GiB", 2e9, True), ("1MiB", 1e9, False), ("1GiB", 4e9, False)):
        monkeypatch.setattr(disk_speed, "bytes_per_second", lambda *given, disk=disk, **limit: disk)
        command_line.main([*plan, budget])
        said = "".join(capsys.readouterr())
        assert (f"{draft.stem} guesses for" in said) == is_used
        command_line.main([*plan, budget, "--no-draft"])
        assert draft.stem not in "".join(capsys.readouterr())


@pytest.mark.parametrize("content", [[1], 3, {"16/16": 3, "1/16": {"kind": []}}])
def test_damaged_notes_about_drafts_count_as_none(cache: Path, content: object) -> None:
    """Each command with this model had ended with an AttributeError."""
    digest = sampled_digest([TARGET], with_times=False)[: own_draft.DIGITS]
    JsonFile(cache_folder.drafts(), digest).write(content)
    assert own_draft.kept(TARGET, "1GiB") is None
    assert own_draft.measured(cache / f"{TARGET.stem}-self-q2_k-{digest}.gguf") is None
    settings = LoadSettings(model=TARGET, draft="self", memory_budget="1GiB")
    assert any("hardly" in note for note in session.plan(settings).notes)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgespec.tools import enlarge

    path = tmp_path_factory.mktemp("big") / "big.gguf"
    enlarge(TARGET, path, 200 << 20)
    return path


def budget(big: Path) -> int:
    """A budget that pages the model and has room for a draft, whatever this process takes."""
    alone = session.plan(LoadSettings(model=big, memory_budget="2GiB", ctx_size=512))
    return alone.smallest_bytes + (155 << 20)


@pytest.mark.slow
def test_it_is_made_once_and_used_from_then_on(
    big: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(own_draft, "MIN_MEASURED", 0.0)
    settings = LoadSettings(model=big, draft="self", memory_budget=budget(big), ctx_size=512)
    path = own_draft.obtain(settings)
    assert kept(cache) == [path.name, lower_parts(path).name]
    written = path.stat().st_mtime_ns
    alone = settings.model_copy(update={"draft": None})
    with session.load(alone) as loaded:
        text = loaded.generate("def read(path):", max_tokens=12).tokens
    with session.load(settings) as loaded:
        assert loaded.draft is not None
        assert loaded.generate("def read(path):", max_tokens=12).tokens == text
    own_draft._keep(*own_draft._key(big, settings.memory_budget), own_draft.OwnDraft())
    assert own_draft.obtain(settings) == path  # as if it were made for other budgets
    assert path.stat().st_mtime_ns == written
    assert (own_draft.measured(path) or own_draft.OwnDraft()).tokens_per_pass > 1
    lower_parts(path).write_bytes(b"damaged")
    with pytest.raises(ModelError):
        session.plan(settings.model_copy(update={"draft": path}))


@pytest.mark.slow
def test_interrupted_work_is_gone_on_with(
    big: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is interrupted when all is written, and the pair is measured."""
    monkeypatch.setattr(strategy, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(own_draft, "MIN_MEASURED", 0.0)
    settings = LoadSettings(model=big, draft="self", memory_budget=budget(big), ctx_size=512)
    shares: list[float] = []

    def interrupt(what: str, share: float, at: float = 2.0) -> None:
        if what == "writing the draft":
            shares.append(share)
            if share >= at:
                raise KeyboardInterrupt

    for at in (0.2, 1.0):
        shares.clear()
        with pytest.raises(KeyboardInterrupt):
            own_draft.obtain(settings, partial(interrupt, at=at))
        assert [name for name in kept(cache) if not name.startswith(".")] == []
    assert shares[0] > 0.2
    shares.clear()
    path = own_draft.obtain(settings, interrupt)
    assert shares == []
    assert kept(cache) == [path.name, lower_parts(path).name]
