"""Prompts that continue a conversation's last message instead of beginning an answer to it.

The names and rules are vLLM's; without either argument a last message of the assistant is
continued, as by llama.cpp's server. Knows no template and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgespec.chat.control_text import new_seam
from edgespec.chat.messages import Message
from edgespec.chat.reasoning import Marks
from edgespec.errors import UsageError

Render = Callable[[Sequence[Message], bool], list[str]]
"""Returns the pieces of a prompt, given messages and whether a new answer begins behind them."""


def continues(
    messages: Sequence[Message],
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> bool:
    """True if the last message is to be continued. Raises UsageError for arguments that exclude
    each other, and if there is no message."""
    if add_generation_prompt and continue_final_message:
        raise UsageError(
            "add_generation_prompt and continue_final_message are both true: a text can begin an "
            "answer or continue the last message"
        )
    if continue_final_message and not messages:
        raise UsageError(
            "there is no message to continue: send one, or leave continue_final_message out"
        )
    if continue_final_message is not None or add_generation_prompt is not None:
        return bool(continue_final_message)
    last: Any = messages[-1] if isinstance(messages, Sequence) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    return bool(content_of(last))


def content_of(message: Message) -> str:
    """The text of a message, which may be in parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def continued(messages: Sequence[Message], render: Render) -> list[str] | None:
    """Pieces of the prompt up to the end of the last message's text; None if the template does not
    show it."""
    *before, last = messages
    mark = new_seam()  # its place is found, whatever the template writes behind the text
    content: Any = last.get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": mark}]
    else:
        content = f"{content or ''}{mark}"
    pieces = render([*before, dict(last) | {"content": content}], False)
    for place in reversed(range(len(pieces))):
        text, found, _ = pieces[place].rpartition(mark)
        if found:
            return [*pieces[:place], text]
    return None


def is_reasoning(content: str, marks: Marks) -> bool:
    """True if a message's text ends inside reasoning."""
    return content.rfind(marks.begin) > content.rfind(marks.end)
