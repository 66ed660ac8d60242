"""Targets whose half-precision weights are read from a coded copy: same logits, fewer bytes, and
the copy only where it is the model's own and faster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_gguf_types import stored_as, write_split

from edgespec.cli import entry
from edgespec.errors import ModelError, UsageError
from edgespec.files import cache_folder
from edgespec.memory.budget import MIB
from edgespec.models import coding
from edgespec.paging.coded_file import open_coded
from edgespec.runtimes import ModelRequest
from edgespec.testing.new_process import passed_in_a_new_process
from edgespec.testing.paging_contract import load_paged, one_by_one
from edgespec_runtimes.gguf import coded, runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.options import GgufOptions
from gguf_files import Tensor, tiny_llama

pytest.importorskip("zstandard")
TOKENS = list(range(40, 48))


@pytest.fixture(autouse=True)
def cache(own_cache_folder: Path) -> Path:
    return own_cache_folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Of half a megabyte."""
    return tiny_llama(kind="BF16", layers=4, ffn=256, tied=False).write(tmp_path / "tiny.gguf")


def request(path: Path, wanted: str = "on", budget_bytes: int | None = None) -> ModelRequest:
    return ModelRequest(
        path,
        "target",
        ctx_size=128,
        max_nodes=5,
        max_branches=5,
        n_threads=1,
        options=GgufOptions(flash_attn="on", weights_coded=wanted),
        batch_size=32,
        budget_bytes=budget_bytes,
    )


def open_paged(path: Path, wanted: str) -> GgufModel:
    model = load_paged(runtime.prepare(request(path, wanted)), 0.3)
    assert isinstance(model, GgufModel)
    return model


def logits(path: Path, wanted: str) -> tuple[np.ndarray, int]:
    """And the bytes that were read for them."""
    model = open_paged(path, wanted)
    try:
        found = one_by_one(model, TOKENS)
        assert model.paging().streamed_bytes > 0
        return found, model.paging().bytes_read
    finally:
        model.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_logits_are_the_same_bit_for_bit_and_fewer_bytes_are_read(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    path = tiny_llama(kind=kind, layers=4, ffn=512, embedding=256, tied=tied).write(
        tmp_path / "tiny.gguf"
    )
    coding.code(path)
    plain, plain_bytes = logits(path, "off")
    found, coded_bytes = logits(path, "on")
    assert np.array_equal(found, plain)
    assert coded_bytes < 0.95 * plain_bytes


def test_a_model_that_was_written_since_is_not_read_from_the_copy(model: Path) -> None:
    """Only samples of it are compared: weights between them may have changed."""
    path = coding.code(model).path
    later = path.stat().st_mtime_ns + 1
    os.utime(model, ns=(later, later))
    assert "written after" in choice(model).note
    with pytest.raises(ModelError, match=r"written after .*models code --force"):
        choice(model, "on")


def test_other_weights_of_a_segment_are_read_as_they_are(tmp_path: Path) -> None:
    """Matrices in single precision, between those that are coded."""
    gguf = tiny_llama(kind="BF16", layers=4, ffn=256)
    for tensor in gguf.tensors:
        if "ffn_gate" in tensor.name:
            values = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
            replaced = Tensor(tensor.name, tensor.shape, 0, values.tobytes())
            gguf.tensors[gguf.tensors.index(tensor)] = replaced
    path = gguf.write(tmp_path / "mixed.gguf")
    assert coding.code(path).other_bytes > 4 * 64 * 256 * 4
    assert np.array_equal(logits(path, "on")[0], logits(path, "off")[0])


def test_a_split_model_is_coded_as_one(tmp_path: Path) -> None:
    write_split(stored_as("BF16", tmp_path), tmp_path / "split.gguf", tensors_per_file=25)
    (first,) = tmp_path.glob("split-00001-of-*.gguf")
    coding.code(first)
    assert np.array_equal(logits(first, "on")[0], logits(first, "off")[0])


def test_tables_that_are_only_looked_up_are_not_coded(model: Path) -> None:
    header = read_header(model)
    table = header.tensors_by_name["token_embd.weight"]
    assert table.offset not in {extent.offset for extent in coded.matrices(header)}
    assert len(coded.matrices(header)) == 4 * 7 + 1


def test_the_plan_counts_what_the_copy_saves(model: Path) -> None:
    def planned(wanted: str) -> tuple[int, int]:
        prepared = runtime.prepare(request(model, wanted))
        needs = prepared.needs()
        prepared.close()
        rows = [row.nbytes for row in needs.paged if "decoding" in row.what]
        return sum(segment.read_bytes for segment in needs.cuts[0]), sum(rows)

    coding.code(model)
    plain_bytes, no_buffers = planned("off")
    coded_bytes, buffers = planned("on")
    assert coded_bytes < plain_bytes
    assert buffers > no_buffers == 0


def choice(path: Path, wanted: str = "auto", streamed_share: float = 0.5) -> coded.Choice:
    return coded.choose(read_header(path), wanted, streamed_share)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how fast it reads the model, and its copy."""

    def gives(*bytes_per_s: float | None) -> None:
        plain, *of_copy = bytes_per_s
        there = {".gguf": plain, ".coded": (*of_copy, plain)[0]}
        monkeypatch.setattr(coded, "_storage", lambda model, copy: _pair(there, model, copy))

    return gives


def _pair(there: dict[str, float | None], *paths: Path) -> tuple[float | None, float | None] | None:
    plain, copy = (there[path.suffix] for path in paths)
    return None if plain is None else (plain, copy)


def test_by_itself_a_copy_is_used_where_storage_is_slow(
    model: Path, storage: Callable[..., None]
) -> None:
    coding.code(model)
    storage(1e6)
    found = choice(model)
    assert found.index is not None
    assert "read coded" in found.note and "storage gives 1.0 MB/s" in found.note


def test_by_itself_a_copy_is_not_used_where_storage_is_fast(
    model: Path, storage: Callable[..., None]
) -> None:
    coding.code(model)
    storage(1e12)
    found = choice(model)
    assert found.index is None
    assert "not used: storage gives" in found.note


def test_a_copy_on_slower_storage_than_the_model_is_not_used(
    model: Path, storage: Callable[..., None]
) -> None:
    coding.code(model)
    storage(2e6, 1e6)
    assert choice(model).index is None


def test_where_the_speed_of_storage_is_not_known_the_model_is_read(model: Path) -> None:
    """It is too small to tell."""
    coding.code(model)
    found = choice(model)
    assert found.index is None
    assert "too small" in found.note


def test_without_a_copy_nothing_is_said(model: Path) -> None:
    assert choice(model) == coded.Choice()


@pytest.mark.parametrize(("wanted", "streamed_share"), [("off", 0.5), ("auto", 0.0)])
def test_off_and_what_fits_into_memory_look_for_no_copy(
    wanted: str, streamed_share: float, model: Path, storage: Callable[..., None]
) -> None:
    coding.code(model)
    storage(1e6)
    assert choice(model, wanted, streamed_share) == coded.Choice()


def test_where_little_is_streamed_computing_hides_its_reading(
    model: Path, storage: Callable[..., None]
) -> None:
    coding.code(model)
    storage(1e6)
    assert choice(model, streamed_share=1e-6).index is None


@pytest.mark.parametrize(("budget_share", "streams"), [(0.5, True), (4.0, False)])
def test_what_of_the_weights_is_streamed_follows_from_the_budget(
    budget_share: float, streams: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def choose(header: object, wanted: str, streamed_share: float) -> coded.Choice:
        asked.append(streamed_share)
        return coded.Choice()

    monkeypatch.setattr(coded, "choose", choose)
    monkeypatch.setattr("edgespec.memory.process.taken_bytes", lambda: 0)
    budget_bytes = int(budget_share * model.stat().st_size)
    prepared = runtime.prepare(request(model, "auto", budget_bytes))
    prepared.needs()
    prepared.close()
    (share,) = asked
    assert 0.5 < share <= 1 if streams else share == 0


def test_a_copy_of_what_the_model_was_before_is_not_found(
    model: Path, storage: Callable[..., None]
) -> None:
    written = coding.code(model)
    storage(1e6)
    content = bytearray(model.read_bytes())
    content[-100] ^= 1
    model.write_bytes(content)
    assert choice(model) == coded.Choice()
    with pytest.raises(UsageError, match=r"no coded copy of tiny\.gguf, as it is now"):
        choice(model, "on")
    with pytest.raises(ModelError, match=r"no copy of .*tiny\.gguf, or of what that was before"):
        choice(model, str(written.path))


def test_a_model_that_was_moved_finds_its_copy(model: Path, storage: Callable[..., None]) -> None:
    coding.code(model)
    storage(1e6)
    assert choice(model.rename(model.with_name("other.gguf"))).index is not None


def test_a_damaged_copy_is_not_used_and_refused_where_it_was_asked_for(
    model: Path, storage: Callable[..., None]
) -> None:
    written = coding.code(model)
    storage(1e6)
    written.path.write_bytes(written.path.read_bytes()[:-1])
    found = choice(model)
    assert found.index is None
    assert "damaged or cut short" in found.note
    with pytest.raises(ModelError, match="damaged or cut short"):
        choice(model, "on")


def test_a_damaged_piece_ends_a_pass_with_one_error(model: Path) -> None:
    written = coding.code(model)
    content = bytearray(written.path.read_bytes())
    for at in range(int(open_coded(written.path).starts[0]), len(content), 4096):
        content[at + 30 : at + 40] = bytes(10)
    written.path.write_bytes(content)
    with pytest.raises(ModelError, match="--weights-coded off reads the model itself"):
        logits(model, "on")


@pytest.fixture
def no_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)


def test_without_zstandard_the_model_is_read_and_the_command_named(
    model: Path, storage: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    coding.code(model)
    storage(1e6)
    request.getfixturevalue("no_zstandard")
    found = choice(model)
    assert found.index is None
    assert 'pip install "edgespec[coded]"' in found.note
    with pytest.raises(UsageError, match="pip install"):
        choice(model, "on")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = entry.main([*map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_command_writes_a_copy_where_commands_find_it(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "models", "code", model, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["path"].startswith(str(cache_folder.coded()))
    assert report["size_bytes"] == Path(report["path"]).stat().st_size
    assert 0.5 < report["share"] < 0.8
    assert report["pays_below_bytes_per_s"] > 0
    assert choice(model, "on").index is not None


def test_the_command_says_what_it_wrote_in_lines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here.coded"
    code, text, _ = run(capsys, "models", "code", model, "--out", out, "--quiet")
    assert code == 0
    assert text.startswith(f"{out}: ")
    assert "reading the copy pays where storage gives less than" in text


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        (("--out", "{model}", "--force"), 2, "the model itself"),
        (("--out", "{folder}"), 2, "--force overwrites it"),
        (("--out", "{folder}/nowhere/x.coded"), 2, "in a folder that exists"),
    ],
    ids=str,
)
def test_places_that_cannot_be_meant_are_refused(
    arguments: Sequence[str],
    exit_code: int,
    complaint: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = model.read_bytes()
    filled = [argument.format(model=model, folder=tmp_path) for argument in arguments]
    code, _, err = run(capsys, "models", "code", model, *filled)
    assert (code, err.count("\n")) == (exit_code, 1)
    assert complaint in err
    assert model.read_bytes() == before


def test_a_copy_that_is_there_is_overwritten_only_by_force(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "models", "code", model, "--quiet")[0] == 0
    code, _, err = run(capsys, "models", "code", model, "--quiet")
    assert code == 2 and "--force overwrites it" in err
    assert run(capsys, "models", "code", model, "--quiet", "--force")[0] == 0


def test_a_quantised_model_has_nothing_to_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_llama(kind="Q8_0").write(tmp_path / "q8.gguf")
    code, _, err = run(capsys, "models", "code", path)
    assert code == 3
    assert "no matrices in half precision" in err


def test_a_budget_holds_with_a_copy(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 34 MiB of weights, and the text is that without one."""
    if passed_in_a_new_process(request):
        return
    from edgespec_runtimes.enlarge.gguf.enlarge import enlarge

    path = tmp_path / "big.gguf"
    enlarge(stored_as("BF16", tmp_path), path, 34 * MIB)
    copy = coding.code(path, tmp_path / "big.coded").path
    command = ("-m", path, "-c", "256", "-t", "1", "--json")
    smallest = json.loads(run(capsys, "plan", *command, "--weights-coded", copy)[1])
    budget = ("--memory-budget", str(smallest["smallest_bytes"] + 4 * MIB))
    texts = []
    for wanted in (copy, "off"):
        more = ("-n", "2", "-p", "def f(x):", "--weights-coded", wanted)
        code, out, err = run(capsys, "generate", *command, *budget, *more)
        assert code == 0, err
        answer = json.loads(out)
        assert answer["memory"]["peak_bytes"] <= answer["memory"]["budget_bytes"]
        assert answer["paging"]["streamed_bytes"] > 0
        texts.append(answer["text"])
    assert texts[0] == texts[1]


def test_a_sample_tells_what_a_copy_would_bring(model: Path) -> None:
    written, sampled = coding.code(model), coding.prospect(model)
    assert sampled is not None
    read_bytes = written.share * written.weight_bytes + written.other_bytes
    expected = read_bytes / (written.weight_bytes + written.other_bytes)
    assert sampled.share == pytest.approx(expected, rel=0.03)


def test_of_a_quantised_model_there_is_no_prospect(tmp_path: Path) -> None:
    path = tiny_llama(kind="Q8_0").write(tmp_path / "q8.gguf")
    assert coding.prospect(path) is None


@pytest.mark.parametrize(("first", "then"), [(4e8, 3e8), (2e9, None)])
def test_a_glance_is_enough_for_fast_storage(
    first: float, then: float | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a limit lets through in a first moment is no measure."""
    written, answers = coding.code(model), iter([first, then])
    monkeypatch.setattr(coded.disk_speed, "bytes_per_second", lambda *_: next(answers))
    rate = then or first
    assert coded._storage(model, written.path) == (rate, rate)
    assert list(answers) == ([] if then else [None])
