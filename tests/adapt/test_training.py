"""A draft that is trained: needs PyTorch, which CI does not install (the extra `adapt`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_lessons import text_of

from edgespec_runtimes.gguf.file.header import read_header
from gguf_files import tiny_llama

pytest.importorskip("torch", reason="the extra `adapt` is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TEXT = [5, 80, 2, 290, 41, 7, 9, 11, 13, 17]


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of llama.cpp after each token."""
    pytest.importorskip("llama_cpp")
    from reference import LlamaCpp

    with LlamaCpp(path, 64) as model:
        return np.stack([model.decode([token]) for token in tokens])


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_in_pytorch_is_the_one_in_the_file(tied: bool, tmp_path: Path) -> None:
    import torch

    from edgespec_runtimes.adapt import training, weights

    path = tiny_llama(kind="F32", tied=tied).write(tmp_path / "m.gguf")
    header = read_header(path)
    tensors = {name: torch.from_numpy(values) for name, values in weights.read(header).items()}
    hidden = training.hidden_states(header, tensors, torch.tensor([TEXT]))
    ours, theirs = training.logits(tensors, hidden)[0].numpy(), logits(path, TEXT)
    assert np.abs(ours - theirs).max() < 1e-2 * theirs.std()  # llama.cpp keeps KV in half precision


def test_a_draft_learns_what_the_target_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec_runtimes.adapt import training

    monkeypatch.setattr(training, "BATCH_TOKENS", 64)  # many steps of few tokens

    source = tiny_llama().write(tmp_path / "m.gguf")
    text = text_of(TEXT, 2, other=42)
    shares: list[float] = []
    texts = [text] * 300
    out = tmp_path / "new.gguf"
    training.adapt(source, out, "new", texts, 1, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1
    after = logits(out, TEXT[:-1])
    assert after[1:].argmax(axis=1).tolist() == TEXT[2:]
    odds = np.exp(after[3, 41] - after[3, 42])
    assert odds == pytest.approx(3, rel=0.3)


def test_the_same_texts_make_the_same_draft(tmp_path: Path) -> None:
    from edgespec_runtimes.adapt.training import adapt

    source = tiny_llama().write(tmp_path / "m.gguf")
    outs = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for out in outs:
        adapt(source, out, "new", [text_of(TEXT, 2)] * 4, 1, lambda share: None)
    assert outs[0].read_bytes() == outs[1].read_bytes()
