"""Heads of the recipe: what PyTorch trains is what llama.cpp computes from the file. Needs PyTorch,
which CI does not install (the extra `train`)."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec_runtimes.gguf import runtime
from gguf_files import tiny_llama
from head_cases import head_request
from one_tree import OneTree
from port_calls import evaluate, prefill

for package in ("torch", "transformers", "tokenizers", "gguf"):
    pytest.importorskip(package, reason="the extra `train` is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TEXT, ROOT_TOKEN = (5, 9, 2, 130, 11, 7, 77, 201, 33, 8), 40
N_VALUES = 64


def written(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """A head with changed weights for a tiny target, states of a text, and the head's file."""
    recipe = Path(__file__).parents[2] / "models" / "recipe"
    monkeypatch.setattr(sys, "path", [*sys.path, str(recipe)])
    import torch

    import block_head
    import eagle_head
    import gguf_llama
    import target_head

    monkeypatch.setattr(target_head, "LAYERS", (1, 2, 3))
    monkeypatch.setattr(eagle_head, "BEGINS_AS", 3)
    monkeypatch.setattr(block_head, "BEGINS_AS", (2, 3))
    target = tiny_llama(layers=4, heads=2, kv_heads=1, kind="F32").write(folder / "target.gguf")
    chosen = {"eagle3": eagle_head.EagleHead, "dflash": block_head.BlockHead}[kind]
    head = chosen(gguf_llama.read(target)).eval()
    head.token_embd = head.token_embd.float()
    torch.manual_seed(0)
    states = torch.randn(1, len(TEXT), 3, N_VALUES) * torch.tensor([1.0, 2.0, 8.0])[:, None]
    head.calibrate(states)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = folder / "head.gguf"
    target_head.write(head, path, target, {"name": "a head"}, "F16", np.arange(3, 200), False)
    return head, states, path


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_the_file_says_what_the_trained_head_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, states, path = written(kind, tmp_path, monkeypatch)
    import torch

    with torch.no_grad():
        tokens, places = torch.tensor([[*TEXT, ROOT_TOKEN]]), torch.tensor([0])
        if kind == "eagle3":
            hidden = head(tokens[:, 1:], states, places)[0][0, -1:]
        else:
            hidden = head(tokens, states, places + len(TEXT))[0, 0]
        expected = (hidden @ head.token_embd.T).numpy()[:, 3:200]
    with (
        closing(runtime.prepare(head_request(path))) as prepared,
        closing(prepared.load(None)) as model,
    ):
        model.take_features(0, states[0].numpy())
        prefill(model, TEXT)
        line, n_guesses = OneTree(ROOT_TOKEN), 1
        if model.info.block_guesses:
            n_guesses = model.info.block_guesses
        for node in range(n_guesses - 1):
            line.add(node, 1, 1.0)
        logits = evaluate(model, line, range(n_guesses))
    assert np.isneginf(logits[:, :3]).all() and np.isneginf(logits[:, 200:]).all()
    difference = np.abs(logits[:, 3:200] - expected).max()
    assert difference < 0.03 * expected.std()  # the cache and the layers are in half precision


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_head_of_the_recipe_learns(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that is always certain that a token follows itself, say its probabilities."""
    head, _, _ = written(kind, tmp_path, monkeypatch)
    import torch

    import real_draft
    import real_head

    tokens = torch.arange(20, 60)[:, None].expand(-1, 24)
    chances = torch.log_softmax(torch.tensor([9.0, 0.0]), 0).expand(40, 24, 2)
    ids = torch.stack([tokens, tokens + 30], -1)
    features = torch.randn(40, 24, 3, N_VALUES).bfloat16()
    texts = real_draft.RowsOfText(tokens, ids, chances, features)
    _, _, divergence = real_head.HEADS[kind]
    monkeypatch.setattr(real_draft.time, "monotonic", iter(range(1000)).__next__)
    monkeypatch.setattr(real_draft, "SAVE_EVERY_S", 1000.0)
    learnt = texts.rows(slice(real_draft.HELD_OUT_ROWS, None))
    head.calibrate(features[:8])
    before = divergence(head, learnt)[0].item()
    real_draft.train(head, texts, tmp_path, 15, divergence, 8)
    head.eval()
    after = divergence(head, learnt)[0].item()
    assert after < 0.2 * before
    assert (tmp_path / "state.pt").exists()
