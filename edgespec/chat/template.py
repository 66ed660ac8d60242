"""Renders a conversation with a model's chat template. Knows no model and no file."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from edgespec.chat.adapting import (
    as_text,
    complete_tools,
    offering,
    other_effort,
    reasoning_variables,
    renamed,
    shown,
)
from edgespec.chat.control_text import ControlTexts, new_seam
from edgespec.chat.messages import Message, checked
from edgespec.chat.reasoning import marks_of
from edgespec.chat.render_limits import RenderingLimits, TemplateLimitError
from edgespec.chat.sandbox import ChatEnvironment, strftime_now
from edgespec.errors import ModelError, setting

MAX_SOURCE_CHARACTERS = 1 << 20


class ChatTemplate:
    """Renders conversations. Thread-safe; renderings run one at a time.

    `source` is Jinja as in `tokenizer_config.json`, `special_tokens` are its variables `bos_token`
    and so on. Only the template may write `control_tokens`, and those of `added_tokens` that it
    contains. Raises ModelError for a template that cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        control_tokens: Iterable[str] = (),
        added_tokens: Iterable[str] = (),
    ) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(source):,} characters, more than "
                f"{MAX_SOURCE_CHARACTERS:,}: give another with {setting.use_chat_template}"
            )
        self.source = source
        self._special_tokens = special_tokens or {}
        # marks such as <|User|>, not words and blanks that were added to a vocabulary
        added = [t for t in added_tokens if re.match(r"[<\[].*[>\]]$", t, re.DOTALL)]
        turn_marks = {token for token in added if token in source}
        self._control = ControlTexts({*control_tokens, *turn_marks})
        self.marks = marks_of(source)
        reasoning = {self.marks.begin, self.marks.end} if self.marks else set()
        # marks that messages of a role may contain
        self._kept = dict.fromkeys(("system", "developer"), turn_marks)
        self._kept["assistant"] = turn_marks | reasoning
        self._turn = threading.Lock()
        self._limits = RenderingLimits()
        self._environment = ChatEnvironment(self._limits)
        try:
            self._template = self._environment.from_string(source)
            tree = self._environment.parse(source)
        except Exception as error:
            raise _failure(error) from error
        self.takes_tools = "tools" in find_undeclared_variables(tree)
        """True if the template reads tools."""

    def shows_messages(self) -> bool:
        """True if a user's message is shown, or if a lone one is refused. Raises
        TemplateLimitError."""
        asked = [{"role": "user", "content": "Hello"}]
        return any(shown(asked, with_tools, self._rendered)[0] for with_tools in (False, True))

    def render(self, *conversation: Any, **variables: Any) -> str:
        """The text of `pieces`, whose arguments it takes."""
        return "".join(self.pieces(*conversation, **variables))

    def pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[str]:
        """The rendered conversation, split inside every control token that a message spells.

        With `add_generation_prompt` it ends where the assistant's answer begins. `variables` are
        those of the template, such as `enable_thinking`. Where the template would refuse or drop a
        part of the conversation, it is told in another form. Raises UsageError for invalid
        messages, ModelError for a template that fails.
        """
        conversation = checked(messages, knows_developer="developer" in self.source)
        offered = complete_tools(tools) if tools else None
        if not self.takes_tools and "tool_calls" not in self.source:
            conversation = as_text(conversation)
        if offered and not self.takes_tools:
            conversation, offered = offering(conversation, offered), None
        if "reasoning_content" not in self.source:
            conversation = [*map(renamed, conversation)]
        seam, control = new_seam(), self._control
        turns = [
            control.seamed(turn, seam, self._kept.get(turn["role"], ())) | {"role": turn["role"]}
            for turn in conversation
        ]
        given = control.seamed(reasoning_variables(variables, self.source), seam)
        told = (
            shown(turns, bool(offered), self._rendered)[1],
            control.seamed(offered, seam) if offered else None,
            add_generation_prompt,
        )
        try:
            text = self._rendered(*told, given)
        except ModelError:
            if not (other := other_effort(variables.get("reasoning_effort"), self.source)):
                raise
            text = self._rendered(*told, given | {"reasoning_effort": other})
        return control.pieces(text, seam)

    def _rendered(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The template's text for turns in its own form. Raises ModelError."""
        with self._turn:
            arguments: dict[str, Any] = {"datetime": strftime_now("%b %d %Y"), "functions": ""}
            arguments["date_string"] = strftime_now("%d %b %Y")
            arguments |= {**self._special_tokens, **(variables or {})}
            arguments |= {"messages": turns, "tools": tools}
            arguments["add_generation_prompt"] = add_generation_prompt
            try:
                self._limits.restart(arguments)
                return str(self._template.render(arguments))
            except Exception as error:  # a template can raise anything
                raise _failure(error) from error


def _failure(error: BaseException) -> ModelError:
    if isinstance(error, TemplateSyntaxError):
        return ModelError(
            f"the chat template is wrong in line {error.lineno}: {error.message}; give another "
            f"with {setting.use_chat_template}"
        )
    if isinstance(error, RecursionError):
        return TemplateLimitError("the chat template calls itself without end")
    if isinstance(error, TemplateLimitError):
        return TemplateLimitError(f"the chat template was stopped: {error}")
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return ModelError(f"the chat template refuses these messages: {reason}")
