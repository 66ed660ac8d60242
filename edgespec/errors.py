"""Every exception edgespec raises on purpose, each with the exit code of the command line.

EdgespecError                 1  anything that went wrong while running
├── UsageError                2  an option or a call that is invalid
│   ├── ContextOverflow       2  a prompt longer than the context
│   ├── SessionClosed         2  a session, or a generation of it, used after `close()`
│   └── GrammarError          2  a grammar that is wrong, too large or cannot be met
├── ModelError                3  a model that cannot be used
│   └── PairError             3  two models that do not fit each other
├── StateError                3  a file of kept state that does not fit, or is damaged
├── BudgetError               4  a memory budget that cannot work
├── WeightReadError           1  storage failed while weights were streamed
├── FetchError                1  a model that could not be fetched
├── TargetLost                1  the server that held the target ended
└── Cancelled               130  the caller asked a running model to stop
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_MARK = "\0"
"""Stands before and after each setting that a message names."""


class _Setting(str):
    """Name of a setting between marks."""

    __slots__ = ()

    def __call__(self, value: object) -> str:
        """The name with a value, as Python writes it."""
        shown = f'"{value}"' if isinstance(value, str) else value
        return f"{self[:-1]}={shown}{_MARK}"


class _Settings:
    def __getattr__(self, name: str) -> _Setting:
        return _Setting(f"{_MARK}{name}{_MARK}")


setting = _Settings()
"""Settings for messages, `setting.ctx_size` or `setting.ctx_size(512)`: each surface spells them as
its users do."""


class Sentence(str):
    """A message to users, in whose text settings are arguments in backticks."""

    marked: str
    """The message with marks, for a part of another one."""

    def __new__(cls, marked: str) -> Self:
        sentence = super().__new__(cls, marked.replace(_MARK, "`"))
        sentence.marked = getattr(marked, "marked", marked)
        return sentence

    def spelled(self, spell: Callable[[str], str]) -> str:
        """The text, in which `spell` tells each setting, a name or `name=value`."""
        parts = self.marked.split(_MARK)
        parts[1::2] = map(spell, parts[1::2])
        return "".join(parts)


def marked(said: object) -> str:
    """A message or an error's message as a part of another message."""
    return getattr(getattr(said, "message", said), "marked", str(said))


class EdgespecError(Exception):
    """Root of the tree; its text says what happened and what to do next."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        self.message = Sentence(message)
        super().__init__(self.message)


class UsageError(EdgespecError):
    """An option, a setting or a call that is invalid."""

    exit_code = 2


class ContextOverflow(UsageError):
    """A prompt has more tokens than the context."""

    def __init__(self, n_ctx: int, n_prompt_tokens: int, is_counted: bool = True) -> None:
        """`n_prompt_tokens` is a lower bound unless `is_counted`: far longer texts are refused
        without being encoded."""
        # LangChain recognises the first words, LiteLLM those after them, which are OpenAI's
        count = f"{n_prompt_tokens:,}" if is_counted else f"at least {n_prompt_tokens:,}"
        super().__init__(
            f"the prompt is too long: this model's maximum context length is {n_ctx:,} tokens, and "
            f"the prompt has {count}: shorten it or, where the model was trained on more, raise "
            f"{setting.ctx_size}"
        )
        self.param: str | None = None
        """Field of a request that the prompt came in."""
        self.n_ctx = n_ctx
        self.n_prompt_tokens = n_prompt_tokens
        self.is_counted = is_counted

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (self.n_ctx, self.n_prompt_tokens, self.is_counted)
        return type(self), arguments, {"param": self.param}


class SessionClosed(UsageError):
    """A session was used after it was closed, or a generation after its session was."""


class GrammarError(UsageError):
    """A schema, regular expression or grammar that is wrong, too large or cannot be met."""


class ModelError(EdgespecError):
    """A model file that is missing, damaged, or of a kind that is not supported."""

    exit_code = 3


class PairError(ModelError):
    """Draft and target have different vocabularies."""


class StateError(EdgespecError):
    """A file of kept state that is damaged, no such file, or of another model or other settings."""

    exit_code = 3


class BudgetError(EdgespecError):
    """The memory budget is below what the request needs; carries the smallest one that works."""

    exit_code = 4

    def __init__(self, message: str, smallest_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class WeightReadError(EdgespecError):
    """Weights could not be read while they were streamed: I/O error or a file cut short."""


class TargetLost(EdgespecError):
    """The RPC server that held the target ended; the session is of no more use."""


class FetchError(EdgespecError):
    """A model could not be fetched from a hub, and is not in the cache."""


class Cancelled(EdgespecError):
    """A running prefill or evaluation was asked to stop by `cancel()`."""

    exit_code = 130
