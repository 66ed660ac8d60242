"""A growing conversation that can be saved and loaded as JSON. Knows no model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgespec.chat.messages import checked
from edgespec.errors import UsageError
from edgespec.files.named_errors import named
from edgespec.files.regular import read_regular
from edgespec.files.unfinished import unfinished_file

MAX_BYTES = 64 << 20


@dataclass
class Dialogue:
    """Messages in OpenAI's format: an optional system message, then the user's and the
    assistant's."""

    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    n_forgotten: int = 0
    """Number of first turns left out of `messages`."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages for a chat template, without forgotten ones."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.turns[self.n_forgotten :]]

    def forget(self) -> bool:
        """Forget the user's first message and its answers; False if it is the only one."""
        later = range(self.n_forgotten + 1, len(self.turns))
        asked = next((n for n in later if self.turns[n]["role"] == "user"), None)
        if asked is not None:
            self.n_forgotten = asked
        return asked is not None

    def reset(self) -> None:
        """Remove all messages except the system message."""
        self.turns.clear()
        self.n_forgotten = 0

    def save(self, path: Path) -> None:
        """Write the messages atomically to a file that only its owner can read.

        Raises UsageError if `path` cannot be written, or is anything but a conversation.
        """
        if not (messages := replace(self, n_forgotten=0).messages):
            raise UsageError("there is nothing to save yet: write a message first")
        content = json.dumps({"messages": messages}, ensure_ascii=False, indent=1)
        with named(f"{path} cannot be written"):
            if path.exists():
                Dialogue().load(path)
            with unfinished_file(path.resolve(), is_private=True) as file:
                # half a surrogate pair, which another program may have saved, stays an escape
                file.write(content.encode(errors="backslashreplace") + b"\n")

    def load(self, path: Path) -> None:
        """Replace the messages by those of a file. Raises UsageError and then changes nothing."""
        with named(f"{path} cannot be read"):
            text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not a conversation: {error}") from error
        messages: Any = content.get("messages") if isinstance(content, dict) else content
        checked(messages)
        is_system = messages[0]["role"] == "system"
        self.system = messages[0]["content"] if is_system else None
        self.turns = [dict(message) for message in messages[is_system:]]
        self.n_forgotten = 0
