"""Text equals onnxruntime's own token-by-token decoding of the whole model, within rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.engine.settings import EngineSettings
from edgespec.session import session
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings
from onnx_files import write_llama
from onnx_reference import WholeModel

PROMPTS = [
    f"{word} the {other}" for word in ("then", "list", "so", "no", "tree") for other in "abcd"
]
N_TOKENS = 24
SHAPE = {"layers": 3, "vocab": 320, "context": 128}
ROUNDING = {"float32": 1e-4, "float16": 0.02}
"""Twice the largest difference seen between logits of a batch and of single tokens."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("models")

    def path_of(dtype: str, **kind: object) -> Path:
        path = folder / "_".join([dtype, *kind])
        if not path.exists():
            write_llama(path, dtype=dtype, **SHAPE, **kind)  # type: ignore[arg-type]
        return path

    return path_of


def differences(running: Session, reference: WholeModel, rounding: float) -> tuple[int, int, int]:
    """Places where another token came although none was due, all such places, drafted tokens.

    After each place the comparison goes on from the reference's token.
    """
    wrong = close = accepted = 0
    ends = frozenset({0})
    for prompt in PROMPTS:
        tokens = running.encode(prompt)
        expected, margins = reference.greedy(tokens, N_TOKENS, ends)
        at = 0
        while at < len(expected):
            result = running.generate([*tokens, *expected[:at]], max_tokens=len(expected) - at)
            accepted += result.speculation.accepted
            same = 0
            for ours, theirs in zip(result.tokens, expected[at:], strict=False):
                if ours != theirs:
                    break
                same += 1
            at += same
            if at < len(expected) and len(result.tokens) > same:
                close += 1
                wrong += margins[at] > rounding
            elif at < len(expected):
                break
            at += 1
    return wrong, close, accepted


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("fused", [False, True])
def test_twenty_drafted_greedy_texts_equal_the_whole_model(
    dtype: str, fused: bool, models: Callable[..., Path]
) -> None:
    """The draft is the target in another precision: its guesses stand, and trees are committed."""
    other = "float16" if dtype == "float32" else "float32"
    target, draft = models(dtype, fused=fused) if fused else models(dtype), models(other)
    settings = LoadSettings(model=target, draft=draft, ctx_size=96)
    with session.load(
        settings, EngineSettings(fallback="fixed", draft_max=7, step_aside=False)
    ) as running:
        reference = WholeModel(target / "model.onnx")
        wrong, close, accepted = differences(running, reference, ROUNDING[dtype])
    assert wrong == 0
    assert close <= 3
    assert accepted > 0  # how many depends on what the engine measures
