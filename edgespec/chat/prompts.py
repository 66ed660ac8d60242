"""Converts messages to the tokens of a prompt: chooses the template, renders it and encodes it.

Knows no model, only its chat format and its tokenizer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgespec import extras
from edgespec.chat.adapting import GENERIC
from edgespec.chat.call_marks import MARKS
from edgespec.chat.continuing import continued, continues, is_reasoning
from edgespec.chat.control_text import ControlTexts, new_seam
from edgespec.chat.messages import Message, checked
from edgespec.chat.reasoning import Marks, ReasoningSplitter, is_open, marks_of
from edgespec.chat.render_limits import TemplateLimitError, measured
from edgespec.errors import ModelError, UsageError, setting
from edgespec.ports.chat_format import ChatFormat
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

Piece = Callable[[int], bytes]
"""Returns the bytes that a token adds to a text."""
Encode = Callable[[str], list[int]]
"""Returns the tokens of a text, without adding special tokens."""


def check_installed() -> None:
    """Raise UsageError if the library that renders templates is not installed."""
    extras.find("jinja2", _EXTRA, _WHY)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a conversation, as text and as tokens."""

    text: str
    tokens: tuple[int, ...]
    marks: Marks | None
    """Marks around reasoning; None if the template has none."""
    template: str
    """Source of the rendered template."""
    hidden_marks: Mapping[int, str] = field(default_factory=dict)
    """Text by token of marks that are control tokens; generations must show them."""
    closing: str = ""
    """Text that ends the reasoning which the prompt opens; empty if it opens none."""
    closing_tokens: tuple[int, ...] = ()
    end_tokens: tuple[int, ...] = ()
    """Tokens that end reasoning wherever it stands; none if the template has no marks of it."""

    def closed(self) -> ChatPrompt:
        """The prompt behind reasoning that is empty, so that the next text is the answer."""
        text, tokens = self.text + self.closing, self.tokens + self.closing_tokens
        return replace(self, text=text, tokens=tokens, closing="", closing_tokens=())

    continued: str | None = None
    """Text of the last message, if the prompt ends in it."""

    def splitter(self) -> ReasoningSplitter:
        """A splitter for the model's next text."""
        marks, continued = self.marks, self.continued
        if marks is None or continued is None:
            return ReasoningSplitter(
                marks, marks.begin * is_open(self.text, marks) if marks else ""
            )
        if not is_reasoning(continued, marks):
            return ReasoningSplitter(None)
        return ReasoningSplitter(marks, continued[continued.rindex(marks.begin) :])


class ChatPrompts:
    """The chat templates of one model. Thread-safe."""

    def __init__(
        self,
        model: str,
        chat_format: ChatFormat,
        encode: Encode,
        override: str | None = None,
        piece: Piece | None = None,
        too_long: Callable[[int], UsageError | None] = lambda _: None,
        bos: Sequence[int] = (),
    ) -> None:
        """Use the templates of `chat_format`, or `override`: Jinja, or `chatml`.

        `bos` are the tokens that the model's texts begin with; they are added to prompts of
        templates that do not write them. `too_long` returns an error for a number of characters
        that cannot fit, so that such conversations are refused before they are rendered. Raises
        UsageError for another override.
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
        self._piece = piece
        self._too_long = too_long
        self._bos = list(bos)
        self._templates: dict[str, ChatTemplate] = {}
        self._lock = threading.Lock()

    def template(self, with_tools: bool = False) -> ChatTemplate:
        """The template for a conversation. Raises ModelError if there is none, or if it omits
        messages."""
        source = self._override or self._format.source(self._model, with_tools)
        with self._lock:
            if source not in self._templates:
                self._templates[source] = self._compiled(source)
            return self._templates[source]

    def _compiled(self, source: str) -> ChatTemplate:
        with extras.needed(_EXTRA, _WHY):
            from edgespec.chat.template import ChatTemplate
        known = self._format
        tokens = known.control_tokens, known.added_tokens
        template = ChatTemplate(source, known.special_tokens, *tokens)
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
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        **variables: Any,
    ) -> ChatPrompt:
        """The prompt for a conversation: for a new answer, or for more of the last message.

        `add_generation_prompt` and `continue_final_message` say which; without either, the last
        message is continued if it is the assistant's. Raises UsageError for invalid messages,
        ModelError for a template that fails.
        """
        template = self.template(bool(tools))
        self._check_size((messages, tools, variables))

        def render(messages: Sequence[Message], begins: bool) -> list[str]:
            return template.pieces(messages, tools, begins, **variables)

        pieces, last = None, checked(messages)[-1]
        if continues(last, add_generation_prompt, continue_final_message):
            pieces = continued(messages, last["content"], render)
            if pieces is None and continue_final_message:
                raise ModelError(
                    "the chat template does not show the last message, so that it cannot be "
                    "continued: leave continue_final_message out"
                )
        content = None if pieces is None else last["content"]
        if pieces is None:
            pieces = render(messages, add_generation_prompt is not False)
        text = arguments.text("the conversation", "".join(pieces))
        marks = marks_of(template.source)
        of_reasoning = (marks.shown or (marks.begin, marks.end)) if marks else ()
        shown = [*of_reasoning, *(MARKS if tools else ())]
        end = f"\n{marks.end}\n\n" if marks else ""
        closing = ""
        if marks and is_open(text, marks):  # as templates write it
            closing = end if text.endswith("\n") else end.removeprefix("\n")
        ending = closing or (marks and marks.ending) or end
        if marks and content and is_reasoning(content, marks):
            closing = end
        return ChatPrompt(
            text,
            tuple(self._tokens(pieces)),
            marks,
            template.source if template.takes_tools else template.source + GENERIC,
            self._hidden(shown),
            closing,
            tuple(self._continuation(closing)) if closing else (),
            tuple(self._continuation(ending)) if ending else (),
            content,
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
        joined, n_seam = self._encode("\n" + piece), len(self._seam)
        return joined[n_seam:] if joined[:n_seam] == self._seam else self._encode(piece)

    @cached_property
    def _seam(self) -> list[int]:
        return self._encode("\n")

    def _check_size(self, conversation: Any) -> None:
        try:
            size, _ = measured(conversation)
        except TemplateLimitError as error:
            raise UsageError(f"the messages are not a conversation: {error}") from error
        if (refusal := self._too_long(size)) is not None:
            raise refusal

    def _hidden(self, marks: Sequence[str]) -> dict[int, str]:
        if self._piece is None:
            return {}
        tokens = [(mark, self._encode(mark)) for mark in marks]
        return {ids[0]: mark for mark, ids in tokens if len(ids) == 1 and not self._piece(ids[0])}
