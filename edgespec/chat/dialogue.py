"""A conversation as it grows, kept and fetched again as JSON. Knows no model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgespec.chat.messages import checked
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.regular import read_regular

MOST_BYTES = 64 << 20


class Dialogue:
    """Messages in OpenAI's shape: perhaps a system's, then the user's and the assistant's."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What a chat template is given."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.turns]

    def ask(self, text: str) -> None:
        """The user says something."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, message: dict[str, Any]) -> None:
        """The assistant answered."""
        self.turns.append({"role": "assistant"} | message)

    def take_back(self) -> None:
        """What was asked last and got no answer was not asked."""
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()

    def reset(self) -> None:
        """Begin anew, with the same system."""
        self.turns.clear()

    def save(self, path: Path) -> None:
        """Write the messages, all or nothing. Raises EdgespecError."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        content = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1)
        try:
            partial.write_text(content + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise EdgespecError(f"{path} cannot be written: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Take the messages of a file. Raises UsageError, and stays as it is then."""
        try:
            content = json.loads(read_regular(path, MOST_BYTES).decode())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is no conversation: {error}") from error
        messages: Any = content.get("messages") if isinstance(content, dict) else content
        checked(messages)
        first, *rest = messages
        is_system = first["role"] == "system"
        self.system = first["content"] if is_system else None
        self.turns = [dict(message) for message in (rest if is_system else messages)]
