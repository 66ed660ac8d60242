"""Prompts that continue a conversation's last message instead of beginning an answer to it.

The names and rules are vLLM's; without either argument a last message of the assistant is
continued, as by llama.cpp's server. Knows no template and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.chat.control_text import new_seam
from edgespec.chat.messages import Message
from edgespec.chat.reasoning import Marks
from edgespec.errors import UsageError

Render = Callable[[Sequence[Message], bool], list[str]]
"""Returns the pieces of a prompt, given messages and whether a new answer begins behind them."""


def continues(
    last: Message, add_generation_prompt: bool | None, continue_final_message: bool | None
) -> bool:
    """True if the last message, which is validated, is to be continued. Raises UsageError for
    arguments that exclude each other."""
    if add_generation_prompt and continue_final_message:
        raise UsageError(
            "add_generation_prompt and continue_final_message are both true: a text can begin an "
            "answer or continue the last message"
        )
    if continue_final_message is not None or add_generation_prompt is not None:
        return bool(continue_final_message)
    is_text = last["role"] == "assistant" and not last.get("tool_calls")
    return is_text and bool(last["content"])


def continued(messages: Sequence[Message], content: str, render: Render) -> list[str] | None:
    """Pieces of the prompt up to the end of the last message's content; None if the template does
    not show it."""
    *before, last = messages
    mark = new_seam()  # its place is found, whatever the template writes behind the text
    pieces = render([*before, dict(last) | {"content": f"{content}{mark}"}], False)
    for place in reversed(range(len(pieces))):
        text, found, _ = pieces[place].rpartition(mark)
        if found:
            return [*pieces[:place], text]
    return None


def is_reasoning(content: str, marks: Marks) -> bool:
    """True if a message's text ends inside reasoning."""
    return content.rfind(marks.begin) > content.rfind(marks.end)
