"""Renders a conversation with a model's chat template, in the form that the template shows.

Small conversations are rendered to find out what a template shows, as llama.cpp does. Knows no
model and no file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from edgespec.chat.control_text import ControlTexts, new_seam
from edgespec.chat.messages import Message, checked
from edgespec.chat.reasoning import marks_of
from edgespec.chat.render_limits import RenderingLimits, TemplateLimitError
from edgespec.chat.sandbox import ChatEnvironment
from edgespec.chat.spliced import CallArguments, TextParts
from edgespec.errors import ModelError, UsageError

MAX_SOURCE_CHARACTERS = 1 << 20


class ChatTemplate:
    """Renders conversations. Thread-safe; renderings run one at a time.

    `source` is Jinja as in `tokenizer_config.json`; `special_tokens` are its variables `bos_token`,
    `eos_token` and so on, or functions. `control_tokens` are the spellings that only the template
    may use, and `added_tokens` are reserved likewise if the template contains them. Raises
    ModelError for a template that cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, Any] | None = None,
        control_tokens: Iterable[str] = (),
        added_tokens: Iterable[str] = (),
    ) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ModelError(
                f"the chat template has {len(source):,} characters, more than "
                f"{MAX_SOURCE_CHARACTERS:,}: give another with `use_chat_template`"
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
        self._limits = RenderingLimits()
        self._environment = ChatEnvironment(self._limits)
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template is wrong in line {error.lineno}: {error.message}; give "
                "another with `use_chat_template`"
            ) from error
        except (TemplateError, TemplateLimitError, RecursionError) as error:
            raise _failure(error) from error
        self._shown = ShownContent(self._rendered)

    @property
    def takes_tools(self) -> bool:
        """True if the template lists tools for the model."""
        return "tools" in self.source

    def shows_messages(self) -> bool:
        """True if the rendered text contains a user's message; also if a lone message is
        refused."""
        return self._shown.shows_messages

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The rendered conversation, with the arguments and errors of `pieces`."""
        return "".join(self.pieces(messages, tools, add_generation_prompt, **variables))

    def pieces(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[str]:
        """The rendered conversation, split inside every control token that a message spells.

        With `add_generation_prompt` it ends where the assistant's answer begins. `variables` are
        those of the template, such as `enable_thinking`. System messages are merged into the user's
        if the template has none. Raises UsageError for invalid messages and for tools that the
        template does not support, ModelError for a template that fails.
        """
        if tools and not self.takes_tools:
            raise UsageError("the model's chat template knows no tools: leave them out")
        conversation = checked(messages, knows_developer="developer" in self.source)
        seam, control = new_seam(), self._control
        text = self._rendered(
            self._shown.adapted([self._seamed_message(turn, seam) for turn in conversation]),
            control.seamed(list(tools), seam) if tools else None,
            add_generation_prompt,
            control.seamed(variables, seam),
        )
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
            arguments = self.special_tokens | dict(variables or {})
            arguments |= {
                "messages": turns,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
            }
            try:
                self._limits.restart(arguments)
                text: str = self._template.render(arguments)
            except Exception as error:  # a template can raise anything
                raise _failure(error) from error
        return text

    def _seamed_message(self, message: Mapping[str, Any], seam: str) -> dict[str, Any]:
        """The message with seams in control tokens, except those that its role may contain.

        Assistant messages may contain marks of reasoning and calls; system and developer messages
        may contain marks of turns.
        """
        kept = self._kept.get(message["role"], ())
        return {
            name: value if name == "role" else self._control.seamed(value, seam, kept)
            for name, value in message.items()
        }


def _is_mark(token: str) -> bool:
    """True for marks such as `<|User|>`, False for words and blanks added to a vocabulary."""
    return token[:1] in ("<", "[") and token[-1:] in (">", "]")


def _failure(error: BaseException) -> ModelError:
    if isinstance(error, RecursionError):
        return TemplateLimitError("the chat template calls itself without end")
    if isinstance(error, TemplateLimitError):
        return TemplateLimitError(f"the chat template was stopped: {error}")
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return ModelError(f"the chat template refuses these messages: {reason}")


Turn = dict[str, Any]
"""A validated message."""
Render = Callable[[Sequence[Turn], Sequence[Mapping[str, Any]] | None], str]
"""Renders a conversation with tools; raises ModelError."""

_USER, _SYSTEM, _CALLED = "edgespec asks", "edgespec is asked", "edgespec_called"
_TOOL = {
    "type": "function",
    "function": {
        "name": "edgespec_tool",
        "description": "Nothing.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ShownContent:
    """Facts about what a template shows; each is found by rendering, when it is asked for."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def shows_messages(self) -> bool:
        """True if a user's message is shown; also if a lone message is refused."""
        try:
            return self.reads_only_parts or self._shows(_USER, [_turn("user", _USER)]) is not False
        except TemplateLimitError:
            return True

    @cached_property
    def reads_only_parts(self) -> bool:
        """True if content is shown as a list of parts, but not as a string."""
        alone = [_turn("user", _USER)]
        talks = [alone, [_turn("system", _SYSTEM), *alone]]
        if any(self._shows(_USER, talk) for talk in talks):
            return False
        return any(self._shows(_USER, _in_parts(talk)) for talk in talks)

    @cached_property
    def has_system(self) -> bool:
        """False if system messages are refused or left out where a user's message is shown."""
        alone = [_turn("user", _USER)]
        talks = [[_turn("system", _SYSTEM), *alone], alone]
        if self.reads_only_parts:
            talks = [_in_parts(talk) for talk in talks]
        return bool(self._shows(_SYSTEM, talks[0]) or not self._shows(_USER, talks[1]))

    @cached_property
    def calls_need_null(self) -> bool:
        """True if calls are shown beside content that is null, but not beside an empty string."""
        call = {"name": _CALLED, "arguments": CallArguments({}, "{}")}
        calls = [{"id": "edgespec1", "type": "function", "function": call}]
        asked, told = _turn("user", _USER), _turn("tool", _USER) | {"tool_call_id": "edgespec1"}

        def shows_call(content: str | None) -> bool | None:
            calling = {"role": "assistant", "content": content, "tool_calls": calls}
            return self._shows(_CALLED, [asked, calling, told])

        return not shows_call("") and bool(shows_call(None))

    def adapted(self, turns: list[Turn]) -> list[Turn]:
        """The turns in the form that the template shows."""
        if any(turn["role"] == "system" for turn in turns) and not self.has_system:
            turns = _without_system(turns)
        if any(_calls_silently(turn) for turn in turns) and self.calls_need_null:
            return [turn | {"content": None} if _calls_silently(turn) else turn for turn in turns]
        return _in_parts(turns) if self.reads_only_parts else turns

    def _shows(self, text: str, conversation: Sequence[Turn]) -> bool | None:
        """True if `text` is in the rendered conversation; None if it is refused.

        Some templates render nothing without tools. Raises TemplateLimitError for a template that
        is stopped.
        """
        for tools in (None, [_TOOL]):
            try:
                return text in self._render(conversation, tools).lower()
            except TemplateLimitError:
                raise
            except ModelError:
                continue
        return None


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _calls_silently(turn: Turn) -> bool:
    return bool(turn.get("tool_calls")) and not turn["content"]


def _in_parts(turns: Sequence[Turn]) -> list[Turn]:
    return [turn | {"content": TextParts(turn["content"])} for turn in turns]


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system messages merged into the user's next message, or into the last."""
    merged: list[Turn] = []
    instructions: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            instructions += [turn["content"]] if turn["content"] else []
        elif turn["role"] == "user" and instructions:
            merged.append(turn | {"content": "\n".join([*instructions, turn["content"]])})
            instructions = []
        else:
            merged.append(turn)
    if instructions and merged and merged[-1]["role"] == "user":
        instructions.insert(0, merged.pop()["content"])
    if instructions:
        merged.append(_turn("user", "\n".join(instructions)))
    return merged
