"""A head for an enlarged target guesses what the head of its source guesses."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import ModelError
from edgespec.models.enlarging import fitting_draft
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from edgespec_runtimes.enlarge.gguf.enlarged_heads import fit_head
from gguf_files import borrowing, tiny_eagle3, tiny_llama
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill

pytest.importorskip("llama_cpp")

MIB = 1 << 20
TEXT = [5, 80, 2, 290, 41, 0, 7]


def guesses(target: Path, head: Path) -> np.ndarray:
    """The head's logits after TEXT, of whose tokens the target gave hidden states."""
    from edgespec_runtimes.gguf import runtime

    with ExitStack() as stack:
        big = runtime.prepare(ModelRequest(target, "target", 64, 8, 4, 1, batch_size=16))
        stack.enter_context(closing(big))
        small = runtime.prepare(ModelRequest(head, "draft", 64, 8, 4, 1, target=target))
        stack.enter_context(closing(small))
        big.offer_features(small.info.feature_layers, small.info.feature_values)
        gives = stack.enter_context(closing(big.load(None)))
        reads = stack.enter_context(closing(small.load(None)))
        gives.give_features(reads.info.feature_layers, reads.take_features)
        prefill(gives, TEXT)
        prefill(reads, TEXT[:-1])
        return evaluate(reads, OneTree(TEXT[-1], 2), [ROOT])[0]


@pytest.mark.costly
@pytest.mark.parametrize("own", [(), ("token_embd.weight",), ("output.weight",)])
@pytest.mark.parametrize("mib", [1.4, 5])
def test_it_guesses_the_same(tmp_path: Path, own: tuple[str, ...], mib: float) -> None:
    model, whole = tiny_llama(layers=4), tiny_eagle3(n_draft_vocab=None, kind="BF16")
    lacks = [name for name in ("token_embd.weight", "output.weight") if name not in own]
    source = model.write(tmp_path / "t.gguf")
    head = borrowing(whole, model, *lacks).write(tmp_path / "h.gguf")
    big, fitted = tmp_path / "big.gguf", tmp_path / "fitted.gguf"
    enlarge(source, big, int(mib * MIB))
    fit_head(head, source, big, fitted)
    expected = guesses(source, head)
    finite = np.isfinite(expected)
    assert np.abs(guesses(big, fitted) - expected)[finite].max() <= 1e-3 * np.ptp(expected[finite])


def test_another_target_is_refused(tmp_path: Path) -> None:
    source = tiny_llama(layers=4).write(tmp_path / "t.gguf")
    head = tiny_eagle3().write(tmp_path / "h.gguf")
    other = tiny_llama(layers=2).write(tmp_path / "o.gguf")
    with pytest.raises(ModelError, match="its head would not fit"):
        fit_head(head, source, other, tmp_path / "f.gguf")


def test_any_other_draft_guesses_for_both(tmp_path: Path) -> None:
    draft = tiny_llama(layers=1).write(tmp_path / "d.gguf")
    assert fitting_draft(draft, tmp_path / "t.gguf", tmp_path / "big.gguf") == draft


def test_a_head_is_fitted_once_for_its_content_and_the_target_s(tmp_path: Path) -> None:
    source = tiny_llama(layers=4).write(tmp_path / "t.gguf")
    head = tiny_eagle3().write(tmp_path / "h.gguf")
    big = tmp_path / "big.gguf"
    enlarge(source, big, int(1.4 * MIB))
    fitted = fitting_draft(head, source, big)
    content = fitted.read_bytes()
    fitted.write_bytes(b"kept")
    assert fitting_draft(head, source, big) == fitted
    assert fitted.read_bytes() == b"kept"
    later_s = fitted.stat().st_mtime + 1
    os.utime(big, (later_s, later_s))
    assert fitting_draft(head, source, big) == fitted
    assert fitted.read_bytes() == content
    tiny_eagle3(norm_before_fc=True).write(head)
    other = fitting_draft(head, source, big)
    assert other != fitted and other.exists() and not fitted.exists()
