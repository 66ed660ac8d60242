"""A prompt whose client leaves while it is read is kept as far as whole passes have read it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.ports import LanguageModel
from edgespec_runtimes.onnx import runtime
from leaving_clients import check_next_try
from onnx_files import write_llama
from paging_contract import load_paged
from port_models import model_request

PROMPT = [(7 * n * n + 3 * n + 1) % 200 + 3 for n in range(240)]


@pytest.mark.parametrize(
    ("n_batch", "is_paged", "drafted"), [(17, False, True), (50, True, False), (97, False, False)]
)
def test_a_prompt_is_kept_by_passes(
    n_batch: int, is_paged: bool, drafted: bool, tmp_path: Path
) -> None:
    write_llama(tmp_path, layers=3, vocab=320, context=256)

    def opened() -> LanguageModel:
        prepared = runtime.prepare(model_request(tmp_path, ctx_size=256, batch_size=n_batch))
        return load_paged(prepared) if is_paged else prepared.load(None)

    check_next_try(opened, PROMPT, 48, drafted)
