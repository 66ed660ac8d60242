"""A generation: the stream of one request of a session, which lives as long as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from edgespec.engine.engine import Engine
from edgespec.engine.stream import Stream
from edgespec.grammar.specification import Grammar
from edgespec.ports import Progress
from edgespec.ports.text_request import TextRequest
from edgespec.state.prompt_cache import PromptCache

if TYPE_CHECKING:
    from edgespec.session.session import Session


class TextOptions(TypedDict, total=False):
    """Keyword options of `Session.stream`, which documents them."""

    stop: str | Sequence[str]
    progress: Progress | None
    grammar: Grammar | None
    logprobs: int | None
    prompt_cache: PromptCache | None


class Generation(Stream):
    """Iterator over the tokens of one request as they are accepted, with a `result` at its end.

    Taking the first token starts it: it then waits in line for its turn. It ends with its text,
    when it is cancelled, closed or no longer referenced, and after an error of the models. Any
    thread may take the next token, one thread at a time. A pass is made when a token is wanted and
    none is there; passes that other texts need go on with this one, too.
    """

    def __init__(
        self,
        engine: Engine,
        request: TextRequest,
        load_s: float = 0.0,
        owner: Session | None = None,
    ) -> None:
        """`owner` is referenced as long as this exists, and knows the memory.

        Raises UsageError if the target cannot serve the request, and SessionClosed.
        """
        super().__init__(engine, engine.admit(request), load_s)
        self._owner = owner

    def _set_result(self) -> None:
        if self._result is None:
            super()._set_result()
            if self._result is not None and self._owner is not None:
                self._result = replace(self._result, memory=self._owner.memory)
