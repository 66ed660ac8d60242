"""A draft of the upper parts of its target's weights: passes read the lower parts, and no token
differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError, ModelError, WeightReadError
from edgespec.files.cache_folder import lower_parts
from edgespec.models.embedded import embedded_pair
from edgespec.session import session
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec.tools import enlarge
from edgespec.values import NESTED
from edgespec_runtimes.enlarge.gguf import trim as trimming
from edgespec_runtimes.enlarge.gguf.trim import trim
from edgespec_runtimes.gguf.file.header import read_header
from gguf_files import STRING, Gguf
from reference import quantise
from sentences import refuses

PROMPT = "def read(path):\n    with open(path) as file:\n"
TARGET_BYTES = 48 << 20
RULES = EngineSettings(remember=False, step_aside=False, lookup=False)
FEW = EngineSettings(remember=False, step_aside=False, lookup=False, draft_max=1)
TIMELESS = EngineSettings(
    **FEW.model_dump() | {"fallback": "full", "no_overlap": True, "draft_max": 8}
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    enlarge(embedded_pair().target, path, TARGET_BYTES)
    return path


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    out = target.with_name("draft.gguf")
    trim(target, out, NESTED[0], range(4096))
    return out


def settings(target: Path, draft: Path | None, room_bytes: int) -> LoadSettings:
    """With room for more than the smallest budget of the pair."""
    wide = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=256)
    least = session.plan(wide).smallest_bytes - (5 << 20)  # other processes may take more
    return wide.model_copy(update={"memory_budget": least + room_bytes})


def tokens(loads: LoadSettings) -> list[int]:
    with session.load(loads, RULES) as loaded:
        return loaded.generate(PROMPT, max_tokens=8).tokens


def flip(path: Path, place: int, bits: int) -> None:
    """Change bits of one byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= bits
    path.write_bytes(raw)


def test_a_matrix_with_a_scale_that_has_no_upper_part_is_the_drafts_as_it_is(
    target: Path, tmp_path: Path
) -> None:
    """Passes do not read it at all."""
    odd, out = tmp_path / "odd.gguf", tmp_path / "draft.gguf"
    shutil.copy(target, odd)
    entry = read_header(odd).tensors_by_name["blk.1.ffn_up.weight"]
    flip(odd, entry.offset + 1, 0x80)
    trim(odd, out, NESTED[0], range(4096))
    parts = (read_header(path).tensors_by_name for path in (out, lower_parts(out)))
    assert [part.get(entry.name) is not None for part in parts] == [True, False]
    assert read_header(out).tensors_by_name[entry.name].type.name == "Q8_0"
    nested = settings(odd, out, 0)
    assert tokens(nested) == tokens(nested.without_draft())


def test_passes_read_the_lower_bits(target: Path, draft: Path) -> None:
    plan = session.plan(settings(target, draft, 0))
    names = {name for i in plan.pinned for name in plan.segments[i].weights}
    whole = sum(t.nbytes for t in read_header(target).tensors if t.name not in names)
    assert 0.4 * whole < plan.bytes_per_pass < 0.6 * whole


@pytest.mark.parametrize("damage", ["cut", "other", "gone", "place", "name", "empty"])
def test_lower_bits_that_are_not_the_drafts_are_refused(
    target: Path, draft: Path, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "draft.gguf"
    shutil.copy(draft, out)
    raw = lower_parts(draft).read_bytes()
    if damage != "gone":
        name = b"blk.0.ffn_up.weight"
        at = raw.index(name) + len(name) + 25  # a byte of its offset
        damaged = {
            "cut": raw[:-4096],
            "other": raw[::-1],
            "place": raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :],
            "name": raw.replace(name, name.replace(b"0", b"1"), 1),
            "empty": Gguf({"general.architecture": (STRING, "x")}).content(),
        }
        lower_parts(out).write_bytes(damaged[damage])
    with refuses(ModelError):
        session.plan(LoadSettings(model=target, draft=out, memory_budget="1GiB", ctx_size=256))


@pytest.mark.parametrize("is_upper", [True, False])
def test_a_damaged_byte_is_told_before_any_token(
    target: Path, draft: Path, tmp_path: Path, is_upper: bool
) -> None:
    """Samples of a file did not show it, and the text was another one."""
    out = tmp_path / "draft.gguf"
    for source, copy in ((draft, out), (lower_parts(draft), lower_parts(out))):
        shutil.copy(source, copy)
    damaged = out if is_upper else lower_parts(out)
    entry = read_header(damaged).tensors_by_name["blk.1.ffn_up.weight"]
    flip(damaged, entry.offset + entry.nbytes // 2, 4)
    said: list[int] = []
    with refuses(WeightReadError), session.load(settings(target, out, 0), RULES) as loaded:
        said.extend(event.token for event in loaded.stream(PROMPT, max_tokens=8))
    assert said == []


def test_a_draft_of_another_file_is_refused(target: Path, draft: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    raw = bytearray(target.read_bytes())
    raw[len(raw) // 2 :: 7] = raw[len(raw) // 2 :: 7][::-1]
    other.write_bytes(raw)
    with refuses(ModelError):
        session.plan(LoadSettings(model=other, draft=draft, memory_budget="1GiB", ctx_size=256))


MAKE = """
import os, sys
from pathlib import Path
from edgespec_runtimes.enlarge.gguf.trim import trim
def end(what, share): share > float(sys.argv[3]) and os.kill(os.getpid(), 9)
trim(Path(sys.argv[1]), Path(sys.argv[2]), "nested", range(4096), end)
"""


def shares_of(target: Path, out: Path) -> list[float]:
    """Make a draft; returns what was written when each tensor was."""
    shares: list[float] = []
    trim(target, out, NESTED[0], range(4096), lambda what, share: shares.append(share))
    return shares


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_process_is_gone_on_with(target: Path, draft: Path, tmp_path: Path) -> None:
    """Nothing is taken for whole before, and the bytes are those of one that was not killed."""
    out = tmp_path / "draft.gguf"
    for share in (0.3, 0.6):
        command = [sys.executable, "-c", MAKE, target, out, str(share)]
        assert subprocess.run(command, check=False).returncode == -9
        with pytest.raises(ModelError):
            read_header(out)
    assert shares_of(target, out)[0] > 0.6
    assert shares_of(target, out) == []
    for one, whole in ((out, draft), (lower_parts(out), lower_parts(draft))):
        assert one.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("change", ["source", "upper", "lower", "cut", "record"])
def test_what_is_not_as_it_was_written_is_made_anew(
    target: Path, draft: Path, tmp_path: Path, change: str
) -> None:
    source, out = tmp_path / "source.gguf", tmp_path / "draft.gguf"
    shutil.copy(target, source)
    whole = shares_of(source, out)
    if change == "source":
        raw = bytearray(source.read_bytes())
        raw[-4096:] = raw[-4096:][::-1]
        source.write_bytes(raw)
    elif change == "record":
        out.with_name("written.json").unlink()
    else:
        damaged = lower_parts(out) if change == "lower" else out
        size = damaged.stat().st_size
        flip(damaged, size // 2, 1)
        os.truncate(damaged, size - 9000 * (change == "cut"))
    assert shares_of(source, out) == whole
    if change != "source":
        assert out.read_bytes() == draft.read_bytes()
        assert lower_parts(out).read_bytes() == lower_parts(draft).read_bytes()


@pytest.mark.parametrize("most_bytes", [1 << 20, 22 << 20])
def test_one_that_a_full_disk_ended_is_gone_on_with(
    target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    resource = pytest.importorskip("resource")
    out, limits = tmp_path / "draft.gguf", resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        patch.setattr(trimming, "_can_be_opened", lambda model, out: True)  # it writes no blocks
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
        try:
            with refuses(EdgespecError):
                trim(target, out, NESTED[0], range(4096))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(shares_of(target, out)) < len(read_header(draft).tensors) + (most_bytes < 2 << 20)
    assert out.read_bytes() == draft.read_bytes()


def test_a_full_disk_is_told_before_anything_is_written(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=40 << 20)  # enough for the draft alone
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with refuses(EdgespecError):
        trim(target, tmp_path / "draft.gguf", NESTED[0], range(4096))
    assert not any(path.stat().st_size > 1 << 20 for path in tmp_path.iterdir())


def test_an_adjustable_budget_has_the_upper_bits_of_all(target: Path, draft: Path) -> None:
    nested = settings(target, draft, 8 << 20).model_copy(update={"adjustable_budget": True})
    with session.load(nested, RULES) as loaded:
        text = loaded.generate(PROMPT, max_tokens=8).tokens
        assert loaded.paging.merge_s > 0
        for changed in (loaded.budget.smallest_bytes, "1GiB", nested.memory_budget):
            loaded.set_memory_budget(changed)
            assert loaded.generate(PROMPT, max_tokens=8).tokens == text
    assert text == tokens(nested.without_draft())


@pytest.mark.slow
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_the_draft_takes_the_prompt_over_from_its_target(
    target: Path, draft: Path, n_parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing; texts are equal, and guesses as good."""
    nested = settings(target, draft, 6 << 20).model_copy(
        update={"ctx_size": 512, "n_parallel": n_parallel, "memory_budget": "1GiB"}
    )
    nested = nested.model_copy(update={"adjustable_budget": True})
    results, n_read = [], []
    for takes in (True, False):
        models = session.open_models(nested)
        model = models.draft
        with session.Session(models, TIMELESS) as loaded:
            if not takes:
                monkeypatch.setattr(model, "info", replace(model.info, takes_prefix=False))
            evaluate = model.evaluate

            def counting(parts, progress=None, evaluate=evaluate):
                n_read.append(sum(len(part.reads) for part in parts))
                return evaluate(parts, progress)

            monkeypatch.setattr(model, "evaluate", counting)
            results.append(loaded.generate(PROMPT * 16, max_tokens=48))
            n_read.append(-1)
    taken, read = results
    assert taken.tokens == read.tokens
    at = n_read.index(-1)
    assert not sum(n_read[:at])
    assert sum(n_read[at:]) > 64
    n_rounds, usual = (result.speculation.rounds for result in results)
    assert n_rounds <= 1.05 * usual


@pytest.mark.slow
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M"])
def test_weights_of_each_type_nest(target: Path, tmp_path: Path, name: str, kind: str) -> None:
    stored, out = tmp_path / "stored.gguf", tmp_path / "draft.gguf"
    quantise(target, stored, name)
    trim(stored, out, kind, range(4096))
    nested = settings(stored, out, 0)
    texts = []
    for one in (nested, nested.without_draft()):
        with session.load(one, RULES) as loaded:
            sampling = SamplingParams(temperature=0.8, seed=3)
            texts.append(loaded.generate(PROMPT, sampling, max_tokens=8).tokens)
            assert (loaded.paging.merge_s > 0) == (one.draft is not None)
    assert texts[0] == texts[1]


def test_lower_bits_of_a_kind_that_was_interrupted_are_not_left_beside_another(
    target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "draft.gguf"
    lower_parts(out).write_bytes(b"begun")
    trim(target, out, "Q4_0", range(4096))
    assert not lower_parts(out).exists()
