"""A model's chat template: messages in, the prompt out, in the words of the model's training.

Knows no model and no file: where a template comes from, `sources` says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from edgespec.chat.control_text import ControlTexts, new_seam
from edgespec.chat.messages import Message, checked
from edgespec.chat.metering import Meter, TemplateLimitError
from edgespec.chat.reasoning import marks_of
from edgespec.chat.sandbox import ChatEnvironment
from edgespec.errors import ModelError, UsageError

MOST_SOURCE_CHARACTERS = 1 << 20
_PROBE = "edgespec asks"


class ChatTemplate:
    """Renders conversations. Any thread may; they take turns.

    `source` is Jinja as in `tokenizer_config.json`; `special_tokens` are what it knows as
    `bos_token`, `eos_token` and so on; `control_tokens` are the spellings that only the template
    may use, `added_tokens` those that users and tools may not, if the template does. Raises
    ModelError for a template that cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        control_tokens: Iterable[str] = (),
        added_tokens: Iterable[str] = (),
    ) -> None:
        if len(source) > MOST_SOURCE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(source):,} characters, more than "
                f"{MOST_SOURCE_CHARACTERS:,}: give another with --chat-template-file"
            )
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        turn_marks = {token for token in added_tokens if token in source and _is_mark(token)}
        self._control = ControlTexts({*control_tokens, *turn_marks})
        marks = marks_of(source)
        reasoning = set() if marks is None else {marks.begin, marks.end}
        self._kept = dict.fromkeys(("system", "developer"), turn_marks)
        self._kept["assistant"] = turn_marks | reasoning
        self._turn = threading.Lock()
        self._meter = Meter()
        self._environment = ChatEnvironment(self._meter)
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template is wrong in line {error.lineno}: {error.message}; give "
                "another with --chat-template-file"
            ) from error
        except (TemplateError, TemplateLimitError, RecursionError) as error:
            raise _failure(error) from error

    @property
    def takes_tools(self) -> bool:
        """Whether it tells the model which tools there are."""
        return "tools" in self.source

    def shows_messages(self) -> bool:
        """Whether a user's message is in what it renders, as far as it renders one alone."""
        try:
            return _PROBE in self.render([{"role": "user", "content": _PROBE}]).lower()
        except ModelError:
            return True

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as the model was trained to read it; as `pieces`, in one."""
        return "".join(self.pieces(messages, tools, add_generation_prompt, **variables))

    def pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[str]:
        """The conversation as the model was trained to read it, cut inside every control token that
        the template did not write itself.

        With `add_generation_prompt` it ends where the assistant's answer begins. `variables` are
        those of the template, such as `enable_thinking`. Raises UsageError for messages that are
        none and for tools that the template does not know, ModelError for a template that fails.
        """
        if tools and not self.takes_tools:
            raise UsageError("the model's chat template knows no tools: leave them out")
        conversation = checked(messages, knows_developer="developer" in self.source)
        seam, control = new_seam(), self._control
        with self._turn:
            self._meter.restart()
            try:
                text: str = self._template.render(
                    self.special_tokens
                    | control.seamed(variables, seam)
                    | {
                        "messages": [self._seamed_message(turn, seam) for turn in conversation],
                        "tools": control.seamed(list(tools), seam) if tools else None,
                        "add_generation_prompt": add_generation_prompt,
                    }
                )
            except Exception as error:  # whatever a template does wrong is its own
                raise _failure(error) from error
        return control.pieces(text, seam)

    def _seamed_message(self, message: Mapping[str, Any], seam: str) -> dict[str, Any]:
        """An assistant's marks around reasoning and calls stay, and an application's own."""
        kept = self._kept.get(message["role"], ())
        return {
            name: value if name == "role" else self._control.seamed(value, seam, kept)
            for name, value in message.items()
        }


def _is_mark(token: str) -> bool:
    """Tells `<|User|>` from the words and blanks that vocabularies add, too."""
    return token[:1] in ("<", "[") and token[-1:] in (">", "]")


def _failure(error: BaseException) -> ModelError:
    if isinstance(error, RecursionError):
        return ModelError("the chat template calls itself without end")
    if isinstance(error, TemplateLimitError):
        return ModelError(f"the chat template was stopped: {error}")
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return ModelError(f"the chat template refuses these messages: {reason}")
