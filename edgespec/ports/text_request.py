"""One request for text, the value that every door hands down to the engine.

Knows no model: the prompt is tokens, a grammar a constraint, kept KV a keeper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.ports.language_model import Progress
from edgespec.settings.config import SamplingParams


class Constraint(Protocol):
    """Protocol of a grammar at work: the tokens that may follow the text so far."""

    def allowed(self) -> NDArray[np.bool_]:
        """Tokens that may come next, [n_vocab]."""

    def take(self, token: int) -> None:
        """`token` is the next one of the text."""

    def forced(self, most: int) -> list[int]:
        """The next tokens, as far as there is no choice; at most so many."""


class Notes(Protocol):
    """Receives notes for the user."""

    def note(self, text: str) -> None: ...


class Keeper(Protocol):
    """Optional protocol of a request: keeps the KV of a prompt beyond the process.

    It may use the models when it is called.
    """

    def before_prompt(self, prompt: Sequence[int], tally: Notes) -> None:
        """Called before the prompt is read: may load kept KV into the models."""

    def after_prompt(self, n_prefilled: int, tally: Notes) -> None:
        """Called after the prompt was read, `n_prefilled` of its tokens in passes of their own."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text to generate, as the caller specified it."""

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    """Most tokens of the text; None: as many as fit into the context."""
    stop: Sequence[str] = ()
    """Strings that end the text and are cut off."""
    constraint: Constraint | None = None
    """Grammar of the text, at its beginning: it follows one text and serves no second request."""
    n_logprobs: int | None = None
    """Alternatives whose log probabilities come with each token's own; None: no log
    probabilities."""
    shown: Mapping[int, str] = field(default_factory=dict)
    """Text of control tokens, which otherwise add none."""
    progress: Progress | None = None
    """Called while the prompt is read."""
    keeper: Keeper | None = None
