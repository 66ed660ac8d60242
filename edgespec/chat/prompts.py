"""Converts messages to the tokens of a prompt: chooses the template, renders it and encodes it.

Knows no model, only its chat format and its tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgespec import extras
from edgespec.chat.adapting import BEGIN
from edgespec.chat.control_text import ControlTexts, new_seam
from edgespec.chat.messages import Message, checked
from edgespec.chat.reasoning import Marks, ReasoningSplitter
from edgespec.chat.render_limits import TemplateLimitError, measured
from edgespec.errors import ModelError, UsageError, setting
from edgespec.ports.language_model import ChatFormat
from edgespec.settings import arguments

if TYPE_CHECKING:
    from edgespec.chat.template import ChatTemplate

_EXTRA, _WHY = "chat", "chat templates need jinja2"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The form of many models, for files without a template."""
MAX_PIECES = 10_000
"""Most pieces of a prompt, which are encoded one by one."""
_OF_CALLS = re.compile(
    r'tool|call|func|\barg|action|python|dsml|channel|constrain|<\|message|"', re.IGNORECASE
)
"""Part of the spelling of control tokens that stand around calls or in them."""


def check_installed() -> None:
    """Raise UsageError if the library that renders templates is not installed."""
    extras.find("jinja2", _EXTRA, _WHY)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a conversation, as text and as tokens."""

    text: str
    tokens: tuple[int, ...]
    marks: Marks | None
    """Marks around reasoning that may come; None if the template has none."""
    template: str
    """Source of the rendered template."""
    hidden_marks: Mapping[int, str] = field(default_factory=dict)
    """Text by token of marks that are control tokens; generations must show them."""
    opened: str = ""
    """The reasoning in which the prompt ends, with its mark; empty if it ends in none."""
    ending: str = ""
    """Text that ends reasoning; empty without marks."""
    ending_tokens: tuple[int, ...] = ()

    def closed(self) -> ChatPrompt:
        """The prompt behind its reasoning, so that the next text is the answer."""
        if not self.opened:
            return self
        text, tokens = self.text + self.ending, self.tokens + self.ending_tokens
        return replace(self, text=text, tokens=tokens, opened="")

    def splitter(self) -> ReasoningSplitter:
        """A splitter for the model's next text."""
        return ReasoningSplitter(self.marks, self.opened)


class ChatPrompts:
    """The chat templates of one model. Thread-safe."""

    def __init__(
        self,
        model: str,
        chat_format: ChatFormat,
        encode: Callable[[str], list[int]],
        override: str | None = None,
        check_length: Callable[[int], None] = lambda _: None,
        bos: Sequence[int] = (),
    ) -> None:
        """Use the templates of `chat_format`, or `override`: Jinja, or `chatml`.

        `encode` adds no special tokens; `bos`, which the model's texts begin with, are added to
        prompts of templates that do not write them. `check_length` raises UsageError for a number
        of characters that cannot fit, before they are rendered. Raises UsageError for another
        override.
        """
        if override == "chatml":
            override = CHATML
        elif override is not None and "{" not in override:
            raise UsageError(
                f"the chat template {override[:60]!r} is neither Jinja nor chatml: give one of "
                f"them, or a file with {setting.use_chat_template}"
            )
        self._model = model
        self._format = chat_format
        self._encode = encode
        self._override = override
        self._check_length = check_length
        self._bos = list(bos)
        self._compile_once = lru_cache(self._compiled)

    def template(self, with_tools: bool = False) -> ChatTemplate:
        """The template for a conversation. Raises ModelError if there is none, or if it omits
        messages."""
        return self._compile_once(self._override or self._format.source(self._model, with_tools))

    def _compiled(self, source: str) -> ChatTemplate:
        with extras.needed(_EXTRA, _WHY):
            from edgespec.chat.template import ChatTemplate
        known, tokens = self._format.special_tokens, self._format.control_tokens
        template = ChatTemplate(source, known, tokens, self._format.added_tokens)
        if not template.shows_messages():
            raise ModelError(
                "the chat template shows no message, so that every question would get one answer: "
                f"give another with {setting.use_chat_template}"
            )
        return template

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        **variables: Any,
    ) -> ChatPrompt:
        """The prompt for a conversation: for a new answer, or for more of the last message.

        `add_generation_prompt` and `continue_final_message`, which are vLLM's, say which; without
        either, the last message is continued if it is the assistant's, as by llama.cpp. Raises
        UsageError for invalid messages, ModelError for a template that fails.
        """
        template = self.template(bool(tools))
        try:
            self._check_length(measured((messages, tools, variables))[0])
        except TemplateLimitError as error:
            raise UsageError(f"the messages are not a conversation: {error}") from error
        begins, goes_on, last = add_generation_prompt, continue_final_message, checked(messages)[-1]
        content, pieces, opened, ending = last["content"], None, "", ""
        if begins and goes_on:
            raise UsageError("add_generation_prompt and continue_final_message are both true")
        if begins is None and goes_on is None:
            goes_on = last["role"] == "assistant" and content and not last.get("tool_calls")
        if goes_on:
            seam, end = new_seam(), new_seam()  # found, whatever the template writes behind it
            begun = [*messages[:-1], {**messages[-1], "content": f"{content}{end}"}]
            rendered = seam.join(template.pieces(begun, tools, False, **variables))
            before, found, _ = rendered.rpartition(end)
            if found:
                pieces = before.split(seam)
            elif continue_final_message:
                raise ModelError(
                    "the chat template does not show the last message, so that it cannot be "
                    "continued: leave continue_final_message out"
                )
        marks = template.marks
        if pieces is None:
            pieces = template.pieces(messages, tools, begins is not False, **variables)
            if marks and "".join(pieces).rstrip().endswith(marks.begin):
                opened = marks.begin
        elif marks and (begin := content.rfind(marks.begin)) > content.rfind(marks.end):
            opened = content[begin:]
        else:  # an answer goes on
            marks = None
        text = arguments.text("the conversation", "".join(pieces))
        if marks:
            ending = marks.ending or f"\n{marks.end}\n\n"
            if text.endswith(marks.begin):  # as templates write it
                ending = ending.removeprefix("\n")
        return ChatPrompt(
            text,
            tuple(self._tokens(pieces)),
            marks,
            template.source if template.takes_tools or not tools else template.source + BEGIN,
            self._hidden(marks, bool(tools)),
            opened,
            ending,
            tuple(self._continuation(ending)) if ending else (),
        )

    def text_tokens(self, text: str) -> list[int]:
        """Tokens of a text in which spelled control tokens stay text, as in a message."""
        control, seam = ControlTexts(self._format.control_tokens), new_seam()
        pieces = control.pieces(control.seamed(text, seam), seam)
        return self._tokens(pieces)[len(self._bos) :]

    def _tokens(self, pieces: Sequence[str]) -> list[int]:
        """Tokens of a text that is split inside control tokens spelled in messages."""
        if len(pieces) > MAX_PIECES:
            raise UsageError(
                f"the messages spell control tokens {len(pieces) - 1:,} times; at most "
                f"{MAX_PIECES - 1:,} are read as text: leave them out"
            )
        tokens = self._encode(pieces[0])
        if tokens[: len(self._bos)] != self._bos:
            tokens = self._bos + tokens
        for piece in pieces[1:]:
            tokens += self._continuation(piece)
        return tokens

    def _continuation(self, piece: str) -> list[int]:
        """Tokens of a text behind another one."""
        # some tokenizers add a blank before every text: a line break in front takes it
        joined, seam = self._encode("\n" + piece), self._encode("\n")
        return joined[len(seam) :] if joined[: len(seam)] == seam else self._encode(piece)

    def _hidden(self, marks: Marks | None, with_tools: bool) -> dict[int, str]:
        """Control tokens of reasoning, and with tools those of calls, and how they are spelled."""
        around = f"{marks.begin}{marks.end}{marks.ending}" if marks else ""
        shown = [
            (text, self._encode(text))
            for text in self._format.control_tokens
            if text in around or (with_tools and _OF_CALLS.search(text))
        ]
        return {tokens[0]: text for text, tokens in shown if len(tokens) == 1}
