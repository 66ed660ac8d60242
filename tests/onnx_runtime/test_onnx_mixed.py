"""A GGUF draft beside an ONNX target and the other way round, when their tokens are the same."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")
pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")

from edgespec.engine.settings import EngineSettings
from edgespec.errors import PairError
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from gguf_files import tiny_llama
from onnx_files import write_llama

pytestmark = pytest.mark.skipif(
    "onnx" not in {entry.name for entry in entry_points(group="edgespec.runtimes")},
    reason="edgespec was installed before it had the ONNX runtime",
)

N_TOKENS = 297
PROMPT = "the other one"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_llama().write(tmp_path / "tiny.gguf")


@pytest.fixture
def onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_llama(tmp_path / "onnx", vocab=N_TOKENS, context=128).parent


def text(model: Path, draft: Path | None, **settings: object) -> tuple[int, ...]:
    load = LoadSettings(model=model, draft=draft, ctx_size=64, **settings)  # type: ignore[arg-type]
    with session.load(
        load, EngineSettings(fallback="fixed", draft_max=3, step_aside=False)
    ) as running:
        result = running.generate(PROMPT, max_tokens=16)
        assert (result.speculation.verified > 0) == (draft is not None)
        return result.tokens


@pytest.mark.slow
def test_a_gguf_draft_leaves_the_text_of_an_onnx_target_alone(gguf: Path, onnx: Path) -> None:
    assert text(onnx, gguf) == text(onnx, None)


@pytest.mark.slow
def test_an_onnx_draft_leaves_the_text_of_a_gguf_target_alone(gguf: Path, onnx: Path) -> None:
    assert text(gguf, onnx) == text(gguf, None)


@pytest.mark.slow
def test_options_for_a_gguf_target_do_not_disturb_an_onnx_draft(gguf: Path, onnx: Path) -> None:
    text(gguf, onnx, cache_type_k="f32", flash_attn="on")


@pytest.mark.slow
def test_a_provider_for_an_onnx_target_does_not_disturb_a_gguf_draft(
    gguf: Path, onnx: Path
) -> None:
    text(onnx, gguf, provider="cpu")


def test_other_tokens_are_no_pair(gguf: Path, tmp_path: Path, onnx: Path) -> None:
    other = write_llama(tmp_path / "other", vocab=N_TOKENS - 5).parent
    with pytest.raises(PairError, match="different vocabularies"):
        text(gguf, other)
