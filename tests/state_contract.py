"""Contract tests of runtimes whose models save and load blocks of texts.

A suite inherits from `StateContract` and defines the fixture `model_factory`, as for
`PortContract`. The model's context must hold at least 48 tokens, and a block at most 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import pytest

from edgespec.errors import StateError
from edgespec.ports import LanguageModel
from paging_contract import one_by_one
from port_calls import prefill
from port_models import OpensModels, parameters_of

TEXT = [(7 * n * n + 3 * n + 1) % 40 for n in range(29)]
MORE = TEXT[23:]


def blocks_of(model: LanguageModel, tokens: Sequence[int] = TEXT[:23]) -> list[bytes]:
    """The whole blocks of a text, which the model reads."""
    prefill(model, tokens)
    size = model.info.block_tokens
    ends = range(0, len(tokens) - size + 1, size)
    return [bytes(model.write_block(begin, 0)) for begin in ends]


def read_blocks(model: LanguageModel, blocks: Sequence[bytes]) -> None:
    """Read blocks into a model, after nothing, and the rest of TEXT[:23]."""
    model.truncate(0)
    for block in blocks:
        model.read_block(memoryview(bytearray(block)), 0)
    assert model.committed_of(0) == len(blocks) * model.info.block_tokens
    prefill(model, TEXT[model.committed_of(0) : 23])


class StateContract(OpensModels):
    @pytest.fixture(scope="class")
    @classmethod
    def kept_blocks(cls) -> dict[str, tuple[list[bytes], np.ndarray]]:
        return {}

    @pytest.fixture
    def kept(
        self,
        request: pytest.FixtureRequest,
        kept_blocks: dict[str, tuple[list[bytes], np.ndarray]],
        model_factory: Callable[[], LanguageModel],
    ) -> tuple[list[bytes], np.ndarray]:
        """The blocks of a model that has read a text, and its logits after more of it."""
        kind = parameters_of(request)
        if kind not in kept_blocks:
            with closing(model_factory()) as model:
                kept_blocks[kind] = blocks_of(model), one_by_one(model, MORE)
        return kept_blocks[kind]

    def test_another_model_goes_on_as_the_one_that_wrote(
        self, kept: tuple[list[bytes], np.ndarray], model: LanguageModel
    ) -> None:
        """The other model continues bit for bit, whatever it held before."""
        prefill(model, [5, 6, 7])
        read_blocks(model, kept[0])
        assert np.array_equal(one_by_one(model, MORE), kept[1])

    def test_what_is_no_block_changes_nothing(
        self, kept: tuple[list[bytes], np.ndarray], model: LanguageModel
    ) -> None:
        model.truncate(0)
        model.read_block(memoryview(bytearray(kept[0][0])), 0)
        with pytest.raises(StateError):
            model.read_block(memoryview(bytearray(kept[0][1][:-1])), 0)
        assert model.committed_of(0) == model.info.block_tokens
        prefill(model, TEXT[model.info.block_tokens : 23])
        assert np.array_equal(one_by_one(model, MORE), kept[1])

    def test_writing_changes_nothing(
        self, kept: tuple[list[bytes], np.ndarray], model: LanguageModel
    ) -> None:
        model.truncate(0)
        assert blocks_of(model) == kept[0]
