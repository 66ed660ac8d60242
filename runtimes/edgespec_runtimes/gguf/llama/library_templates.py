"""Chat templates that llama.cpp knows by name."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property

from edgespec_runtimes.gguf.llama.bindings import lib


class LlamaTemplates:
    """Renders conversations with llama.cpp's own templates, which do not write the BOS token."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in alphabetical order."""
        found = (ctypes.c_char_p * lib.llama_chat_builtin_templates(None, 0))()
        lib.llama_chat_builtin_templates(found, len(found))
        return tuple(sorted(name.decode() for name in found))

    def render(self, name: str, turns: Sequence[tuple[str, str]], begins_answer: bool) -> str:
        """The text of roles and contents. Raises ValueError for a character that ends C strings."""
        if any("\0" in content for _, content in turns):
            raise ValueError("llama.cpp's templates take no text with the character NUL")
        chat = (lib.llama_chat_message * len(turns))()
        for message, (role, content) in zip(chat, turns, strict=True):
            message.role, message.content = role.encode(), content.encode()
        room = 1024 + 2 * sum(len(message.content) for message in chat)
        while True:
            text = ctypes.create_string_buffer(room)
            arguments = (name.encode(), chat, len(turns), begins_answer)
            length = lib.llama_chat_apply_template(*arguments, text, room)
            if length <= room:
                return text.raw[: max(length, 0)].decode()
            room = length
