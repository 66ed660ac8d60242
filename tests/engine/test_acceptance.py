from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from edgespec.engine.text import Text
from edgespec.engine.transcript import Transcript
from edgespec.errors import ModelError
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import Sampler, SamplingParams
from edgespec.values import TokenEvent
from fake_model import FakeVocabulary
from one_tree import ROOT, OneTree

N_VOCAB = 8


def favouring(*tokens: int) -> np.ndarray:
    """A row of logits per token that makes it the best one."""
    logits = np.zeros((len(tokens), N_VOCAB), np.float32)
    logits[np.arange(len(tokens)), tokens] = 1.0
    return logits


def request(
    *eog: int, stop: Sequence[str] = (), limit: int = 9, sampler: Sampler | None = None
) -> Text:
    """Token 0 is "a", token 1 "b" and so on."""
    transcript = Transcript(FakeVocabulary(N_VOCAB, eog), stop, limit, "length")
    text = Text(TextRequest((0,)), sampler or Sampler(SamplingParams()), transcript)
    text.slot = SimpleNamespace(number=0)  # type: ignore[assignment]
    return text


def walked(
    tree: OneTree, nodes: list[int], logits: np.ndarray, request_: Text | None = None
) -> tuple[list[int], list[TokenEvent]]:
    text = request_ or request()
    return text.accept(tree, nodes, logits), text.events


def outcome(accepted: tuple[list[int], list[TokenEvent]]) -> tuple[list[int], list[int]]:
    path, events = accepted
    return path, [event.token for event in events]


@pytest.fixture
def tree() -> OneTree:
    """0 -> 1 -> 2, and 0 -> 3."""
    tree = OneTree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 2, 0.5)
    tree.add(ROOT, 3, 0.5)
    return tree


def test_the_deepest_agreed_path_stands_with_the_targets_own_token(tree: OneTree) -> None:
    accepted = walked(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6))
    assert outcome(accepted) == ([0, 1, 2], [1, 2, 5])


def test_a_path_stands_up_to_the_first_disagreement(tree: OneTree) -> None:
    assert outcome(walked(tree, [0, 1, 2, 3], favouring(1, 7, 5, 6))) == ([0, 1], [1, 7])


def test_any_branch_may_stand(tree: OneTree) -> None:
    assert outcome(walked(tree, [0, 1, 2, 3], favouring(3, 7, 5, 6))) == ([0, 3], [3, 6])


def test_without_agreement_the_target_gives_one_token(tree: OneTree) -> None:
    assert outcome(walked(tree, [0, 1, 2, 3], favouring(4, 2, 5, 6))) == ([0], [4])


def test_guesses_that_stand_are_the_drafts_and_the_last_token_is_the_targets(tree: OneTree) -> None:
    _, events = walked(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6))
    assert [(event.text, event.origin) for event in events] == [
        ("b", "draft"),
        ("c", "draft"),
        ("f", "target"),
    ]


# Where the walk ends


@pytest.mark.parametrize(
    "ending",
    [request(1), request(stop=["b"]), request(limit=1)],
    ids=["end of generation", "stop string", "max_tokens"],
)
def test_nothing_is_picked_after_the_end_of_the_text(tree: OneTree, ending: Text) -> None:
    accepted = walked(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6), ending)
    assert outcome(accepted) == ([0], [1])
    assert ending.transcript.tokens == [1]


def test_a_stop_string_may_end_in_the_middle_of_a_branch(tree: OneTree) -> None:
    accepted = walked(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6), request(stop=["bc"]))
    assert outcome(accepted) == ([0, 1], [1, 2])


def damaged(row: int, *tokens: int) -> np.ndarray:
    logits = favouring(*tokens)
    logits[row] = np.nan
    return logits


def test_tokens_before_a_failure_stand_and_the_failure_is_kept(tree: OneTree) -> None:
    failing = request()
    accepted = walked(tree, [0, 1, 2, 3], damaged(2, 1, 2, 5, 6), failing)
    assert outcome(accepted) == ([0, 1], [1, 2])
    assert isinstance(failing.failure, ModelError)


def test_a_failure_before_the_first_token_is_raised(tree: OneTree) -> None:
    with pytest.raises(ModelError):
        walked(tree, [0, 1, 2, 3], damaged(0, 1, 2, 5, 6))


def test_a_failure_at_a_rejected_guess_is_none(tree: OneTree) -> None:
    sound = request()
    accepted = walked(tree, [0, 1, 2, 3], damaged(3, 1, 2, 5, 6), sound)
    assert (outcome(accepted), sound.failure) == (([0, 1, 2], [1, 2, 5]), None)


def test_penalties_see_the_tokens_of_the_walk() -> None:
    """At each node token 1 is best and 2 next; once 1 is in the text, its penalty lets 2 win."""
    tree = OneTree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 1, 0.5)
    logits = np.tile(np.array([[0, 4, 3, 0, 0, 0, 0, 0]], np.float32), (3, 1))
    sampler = Sampler(SamplingParams(repeat_penalty=2.0), prompt=[0])
    accepted = walked(tree, [0, 1, 2], logits, request(sampler=sampler))
    assert outcome(accepted) == ([0, 1], [1, 2])
