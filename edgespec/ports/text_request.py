"""A request for text, as the session, the server and the command line pass it to the engine.

Knows no model: the prompt is tokens, a grammar is a constraint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.ports.language_model import Progress
from edgespec.settings.config import SamplingParams
from edgespec.values import GenerationResult, PromptProgress, TokenEvent


class Constraint(Protocol):
    """Protocol of a grammar in use: the tokens that may follow the text so far."""

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Mask of the tokens that may come next, [n_vocab]; `ahead` of the text, of those after
        these tokens: none if they are forbidden themselves."""

    def take(self, token: int) -> None:
        """Advance by `token`, the next token of the text."""

    def forced(self, most: int) -> list[int]:
        """The next tokens, at most `most`, as far as the grammar leaves no choice."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A request to generate one text."""

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    """Most tokens of the text; None: as many as fit into the context."""
    stop: Sequence[str] = ()
    """Strings that end the text and are cut off."""
    constraint: Constraint | None = None
    """Grammar in its initial state; it follows this text and cannot serve another request."""
    n_logprobs: int | None = None
    """Number of alternatives with log probabilities, besides the token's own; None: none at all."""
    shown: Mapping[int, str] = field(default_factory=dict)
    """Text of control tokens that are to be visible; others add no text."""
    progress: Progress | None = None
    """Called by the thread that takes the tokens, for what has been read of the prompt."""
    yields_progress: bool = False
    """Yield `PromptProgress` before the tokens, where there is no callback for it."""
    client: str = ""
    """Client whose text it is: what was computed for others is not used, as its time would tell."""
    notes: Sequence[str] = ()
    """Notes on the request for its result."""
    runs_ahead: bool = False
    """Once begun, write the text to its end without waiting for whoever takes its tokens."""


class Tokens(Protocol):
    """Protocol of the tokens of a request, as they are written."""

    @property
    def result(self) -> GenerationResult: ...

    def __iter__(self) -> Iterator[TokenEvent | PromptProgress]: ...

    def run_ahead(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...
