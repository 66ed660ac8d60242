"""The accuracy level of MatMulNBits can be chosen, and a note names what it costs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from pathlib import Path

from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.graph.accuracy import levels
from edgespec_runtimes.onnx.options import OnnxOptions
from edgespec_runtimes.onnx.prepared import PreparedOnnx
from genai_models import QWEN
from onnx_models import request
from session_cases import PLAN


def prepared_as(path: Path, owner: str = "target", level: int | None = None) -> PreparedOnnx:
    asked = request(path, options=OnnxOptions(accuracy_level=level))
    prepared = runtime.prepare(replace(asked, owner=owner))
    assert isinstance(prepared, PreparedOnnx)
    return prepared


@pytest.mark.parametrize(("owner", "level"), [("target", 1), ("draft", 4)])
def test_the_accuracy_level_of_the_target_can_be_chosen(owner: str, level: int) -> None:
    with closing(prepared_as(QWEN, owner, 1)) as prepared:
        assert levels(prepared._graph.graph) == {level}


def test_the_note_is_also_there_without_guesses() -> None:
    """Tokens that an earlier text left in the cache are not computed in a batch again."""
    alone = replace(request(QWEN), max_nodes=1)
    with closing(runtime.prepare(alone)) as prepared:
        assert any("an earlier text may" in note for note in prepared.notes(PLAN))
    with closing(runtime.prepare(replace(alone, owner="draft"))) as prepared:
        assert not any("accuracy_level" in note for note in prepared.notes(PLAN))
