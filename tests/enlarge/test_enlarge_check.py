"""The model that an enlarged one is compared with, and the differences that are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgespec.cli import entry
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.models.compare import N_TOKENS, ROUNDING, Comparison, compare, compare_files
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import quantiser
from edgespec_runtimes.gguf.llama.quantiser import FILE_TYPES, quantise
from gguf_files import Gguf, tiny_llama

MIB = 1 << 20
N_VOCAB = 50
PROMPTS = ("return None", "for name in names:")


class Bigrams:
    """A model whose logits follow from the last token alone; remembers what it was asked."""

    def __init__(self, change: float = 0.0) -> None:
        self.table = np.random.default_rng(0).uniform(-5, 5, (N_VOCAB, N_VOCAB)).astype("f4")
        self.table[:, 3] += change
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, tokens: Sequence[int], start: int) -> np.ndarray:
        self.calls.append((list(tokens), start))
        return self.table[tokens[start:]]


def silently(what: str, share: float) -> None:
    pass


def test_equal_models_are_the_same():
    found = compare(Bigrams(), Bigrams(), [[1, 2], [3]], silently)
    assert found.is_same
    assert (found.texts, found.tokens, found.equal) == (2, 2 * N_TOKENS, 2 * N_TOKENS)
    assert found.largest_difference == 0
    assert found.spread == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(("share", "same"), [(0.9, True), (1.1, False)])
def test_logits_may_differ_by_a_share_of_their_spread(share: float, same: bool):
    spread = compare(Bigrams(), Bigrams(), [[1]], silently).spread
    found = compare(Bigrams(), Bigrams(share * ROUNDING * spread), [[1]], silently)
    assert found.largest_difference == pytest.approx(share * ROUNDING * spread, rel=1e-3)
    assert found.is_same is same


def test_tokens_that_differ_are_counted():
    found = compare(Bigrams(), Bigrams(20), [[1]], silently)
    assert found.equal < found.tokens
    assert not found.is_same


def test_the_other_model_reads_the_greedy_text_at_once():
    source, other = Bigrams(), Bigrams()
    compare(source, other, [[4, 5, 6]], silently)
    ((text, start),) = other.calls
    assert start == 2
    assert text[:3] == [4, 5, 6]
    assert len(text) - start == N_TOKENS
    greedy = source.table.argmax(axis=1)
    assert all(after == greedy[before] for before, after in pairwise(text[2:]))


def test_progress_rises_to_one():
    shares: list[float] = []
    compare(Bigrams(), Bigrams(), [[1], [2]], lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def grown(tmp_path: Path, model: Gguf) -> tuple[Path, Path]:
    """A model and the enlarged one."""
    source, out = model.write(tmp_path / "small.gguf"), tmp_path / "big.gguf"
    enlarge(source, out, 5 * MIB)
    return source, out


def test_an_enlarged_model_passes(tmp_path: Path):
    source, out = grown(tmp_path, tiny_llama())
    found = compare_files(source, out, "1GiB", PROMPTS, silently)
    assert found.is_same
    assert found.equal == found.tokens == 2 * N_TOKENS
    assert found.largest_difference <= 1e-5 * found.spread


def test_a_model_with_one_other_layer_does_not_pass(tmp_path: Path):
    _, out = grown(tmp_path, tiny_llama())
    other = tiny_llama()
    tensor, changed = other.tensor("blk.1.ffn_up.weight"), tiny_llama(seed=1)
    tensor.data = changed.tensor("blk.1.ffn_up.weight").data
    source = other.write(tmp_path / "other.gguf")
    assert not compare_files(source, out, "1GiB", PROMPTS, silently).is_same


OF_LARGE_BLOCKS = (
    "Q6_K",
    "Q5_K_M",
    "Q4_K_M",
    "IQ4_XS",
    "Q3_K_M",
    "IQ3_S",
    "Q2_K",
    "TQ2_0",
    "TQ1_0",
)


@pytest.mark.parametrize("name", ["Q4_0", *OF_LARGE_BLOCKS])
def test_a_quantised_model_can_be_enlarged_and_stays_the_same(tmp_path: Path, name: str):
    """Heads that share a KV head take 64 columns, less than a block of 256."""
    source = tiny_llama(embedding=256, heads=8, kv_heads=4, ffn=256).write(tmp_path / "m.gguf")
    stored, out = tmp_path / "stored.gguf", tmp_path / "big.gguf"
    quantise(source, stored, name)
    report = enlarge(stored, out, 48 * stored.stat().st_size)
    assert report.factor > 1
    kinds = {tensor.type.name for tensor in read_header(out).tensors}
    assert kinds == {tensor.type.name for tensor in read_header(stored).tensors}
    assert name.removesuffix("_M") in kinds
    assert compare_files(stored, out, "2GiB", PROMPTS[:1], silently).is_same


def test_short_names_and_small_letters_name_types_too(tmp_path: Path):
    source = tiny_llama().write(tmp_path / "m.gguf")
    quantise(source, tmp_path / "out.gguf", "q4_0")
    kinds = {tensor.type.name for tensor in read_header(tmp_path / "out.gguf").tensors}
    assert "Q4_0" in kinds
    assert quantiser.ALIASES.keys().isdisjoint(FILE_TYPES)
    assert set(quantiser.ALIASES.values()) <= FILE_TYPES.keys()


def test_an_unknown_type_names_the_known_ones(tmp_path: Path):
    source = tiny_llama().write(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match=r"--type Q4_9 is none of .*Q4_0"):
        quantise(source, tmp_path / "out.gguf", "Q4_9")


def test_what_llama_cpp_would_not_survive_is_not_handed_to_it(tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF but no model")
    with pytest.raises(ModelError):
        quantise(tmp_path / "m.gguf", tmp_path / "out.gguf", "Q4_0")


def test_a_failure_of_the_quantiser_is_reported(tmp_path: Path):
    source = tiny_llama().write(tmp_path / "m.gguf")
    with pytest.raises(EdgespecError, match="could not be stored as Q4_0"):
        quantise(source, tmp_path / "no folder" / "out.gguf", "Q4_0")


def run(*arguments: str | Path) -> int:
    return entry.main(["models", "enlarge", *map(str, arguments)])


def test_the_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = tiny_llama().write(tmp_path / "m.gguf"), tmp_path / "big.gguf"
    options = ("--size", "5MiB", "--type", "Q4_0", "--check", "--memory-budget", "1GiB")
    assert run(source, out, *options, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["size_bytes"] == out.stat().st_size
    assert printed["check"]["is_same"]
    assert printed["check"]["tokens"] == 3 * N_TOKENS
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_the_command_fails_where_models_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = grown(tmp_path, tiny_llama())
    other = tiny_llama(seed=1).write(tmp_path / "other.gguf")
    assert run(source, out, "--check") == 0
    assert "192 of 192 greedy tokens equal" in capsys.readouterr().out
    assert run(other, out, "--check") == 1
    assert "does not compute what" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--size writes OUT, --check compares it"),
        (["--check"], "big.gguf does not exist"),
        (["--size", "5MiB", "--memory-budget", "1GiB"], "--memory-budget is that of --check"),
        (["--check", "--force"], "does not exist"),
    ],
)
def test_flags_that_cannot_apply_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
):
    source = tiny_llama().write(tmp_path / "m.gguf")
    assert run(source, tmp_path / "big.gguf", *flags) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_comparison_says_what_it_allows():
    found = Comparison(texts=1, tokens=64, equal=63, largest_difference=0.1, spread=20)
    assert found.allowed_difference == pytest.approx(0.2)
    assert found.as_dict()["is_same"] is True
