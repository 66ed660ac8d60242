"""Rotation factors follow the context that was asked for, not the cells that a tree would like."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from paging_contract import load_either, one_by_one
from reference import LlamaCpp
from zoo_files import write_model
from zoo_species import Species

ORIGINAL = 256
"""The context up to which the short factors hold."""
TOKENS = [5, 91, 300, 17, 44]


@pytest.mark.parametrize("n_ctx", [ORIGINAL, ORIGINAL + 1])
def test_a_draft_does_not_change_the_factors(n_ctx: int, tmp_path: Path) -> None:
    """Cells for the tree took a context of the original size beyond it, to the long factors."""
    path = write_model(tmp_path / "m.gguf", Species("phi3", variant="longrope"))
    with LlamaCpp(path, n_ctx=n_ctx) as alone:
        alone.start()
        expected = np.stack([alone.decode([token]) for token in TOKENS])
    prepared = runtime.prepare(ModelRequest(path, "target", n_ctx, 49, 32, 1, batch_size=32))
    with closing(load_either(prepared)) as model:
        assert np.array_equal(one_by_one(model, TOKENS), expected)
