"""Contract tests of runtimes whose models save and load state.

A suite inherits from `StateContract` and defines the fixture `model_factory`, as for
`PortContract`. The model's context must hold at least 48 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import pytest

from edgespec.errors import StateError
from edgespec.ports import LanguageModel
from edgespec.ports.state import KeepsState
from paging_contract import one_by_one
from port_calls import prefill
from port_models import OpensModels, parameters_of

N_KEPT, N_MORE = 23, 6


class Pieces:
    """Reads saved pieces from a list; implements `edgespec.ports.state.Read`."""

    def __init__(self, content: Sequence[bytes]) -> None:
        self._content = list(content)

    def size(self) -> int:
        if not self._content:
            raise StateError("there is no more")
        return len(self._content[0])

    def __call__(self, into: memoryview) -> None:
        if self.size() != into.nbytes:
            raise StateError("a piece has another size")
        into[:] = self._content.pop(0)


def pieces_of(model: LanguageModel) -> list[bytes]:
    """Pieces that a model hands over."""
    assert isinstance(model, KeepsState)
    content: list[bytes] = []
    model.write_state(lambda piece: content.append(bytes(piece)))
    return content


class StateContract(OpensModels):
    @pytest.fixture
    def texts(self) -> tuple[list[int], list[int]]:
        """The text whose state is saved, and the text that follows it."""
        tokens = [(7 * n * n + 3 * n + 1) % 40 for n in range(N_KEPT + N_MORE)]
        return tokens[:N_KEPT], tokens[N_KEPT:]

    @pytest.fixture(scope="class")
    @classmethod
    def kept_states(cls) -> dict[str, tuple[list[bytes], np.ndarray]]:
        return {}

    @pytest.fixture
    def kept(
        self,
        request: pytest.FixtureRequest,
        kept_states: dict[str, tuple[list[bytes], np.ndarray]],
        model_factory: Callable[[], LanguageModel],
        texts: tuple[list[int], list[int]],
    ) -> tuple[list[bytes], np.ndarray]:
        """The pieces of a model that has read the first text, and its logits after the second."""
        kind = parameters_of(request)
        if kind not in kept_states:
            with closing(model_factory()) as model:
                prefill(model, texts[0])
                kept_states[kind] = pieces_of(model), one_by_one(model, texts[1])
        return kept_states[kind]

    @pytest.fixture
    def other(self, model: LanguageModel) -> LanguageModel:
        """A second model of the same files, which successive tests share."""
        return model

    def test_another_model_goes_on_as_the_one_that_wrote(
        self,
        kept: tuple[list[bytes], np.ndarray],
        other: LanguageModel,
        texts: tuple[list[int], list[int]],
    ) -> None:
        """The other model continues bit for bit, whatever it held before."""
        prefill(other, [5, 6, 7])
        assert isinstance(other, KeepsState)
        other.read_state(N_KEPT, Pieces(kept[0]))
        assert other.committed_of(0) == N_KEPT
        assert np.array_equal(one_by_one(other, texts[1]), kept[1])

    def test_an_earlier_part_of_the_text_can_be_gone_on_from(
        self,
        kept: tuple[list[bytes], np.ndarray],
        other: LanguageModel,
        texts: tuple[list[int], list[int]],
    ) -> None:
        """The saved state includes the window of attention before an earlier position."""
        if not other.info.tree_capable:
            pytest.skip("recurrent state has no earlier part")
        assert isinstance(other, KeepsState)
        n_tokens = N_KEPT - 8
        prefill(other, texts[0])
        other.truncate(n_tokens)
        expected = one_by_one(other, texts[1])
        other.read_state(N_KEPT, Pieces(kept[0]))
        other.truncate(n_tokens)
        assert np.array_equal(one_by_one(other, texts[1]), expected)

    def test_what_is_missing_leaves_nothing_and_the_model_goes_on(
        self,
        kept: tuple[list[bytes], np.ndarray],
        other: LanguageModel,
        texts: tuple[list[int], list[int]],
    ) -> None:
        assert isinstance(other, KeepsState)
        with pytest.raises(StateError):
            other.read_state(N_KEPT, Pieces(kept[0][:-1]))
        assert other.committed_of(0) == 0
        prefill(other, texts[0])
        assert np.array_equal(one_by_one(other, texts[1]), kept[1])

    def test_writing_changes_nothing(
        self, kept: tuple[list[bytes], np.ndarray], other: LanguageModel
    ) -> None:
        assert isinstance(other, KeepsState)
        other.read_state(N_KEPT, Pieces(kept[0]))
        assert pieces_of(other) == kept[0]
