"""The engine keeps one copy of a pass's logits, as the plan says, and none during the next pass."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.ports import PassPart
from engine_cases import COUNTING, N_VOCAB, counting, generate
from fake_model import FakeModel


class Watching(FakeModel):
    """Counts logits of earlier passes that somebody still holds when a pass begins."""

    def __init__(self) -> None:
        super().__init__(COUNTING, N_VOCAB)
        self.held: list[int] = []
        self._returned: list[weakref.ref[np.ndarray]] = []

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        self.held.append(sum(logits() is not None for logits in self._returned))
        logits = np.array(super()._evaluate(parts)[0])
        self._returned.append(weakref.ref(logits))
        return [logits]


@pytest.mark.parametrize("has_draft", [False, True])
def test_logits_of_a_round_are_gone_before_the_next_pass(has_draft: bool) -> None:
    """They were kept until the next ones came: three copies, where two were planned."""
    target = Watching()
    generate(target, counting() if has_draft else None, max_tokens=40, draft_max=4)
    assert len(target.held) > 2
    assert not any(target.held)
