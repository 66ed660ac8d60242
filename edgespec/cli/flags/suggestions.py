"""What was probably meant by a word that means nothing here, in half a sentence for an error.

Knows how other programs of this kind are called: Ollama's commands, models as plain arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from edgespec.models import catalogue
from edgespec.settings.base import nearest

_ELSEWHERE = {
    "run": "chat -m MODEL",
    "cli": "generate",
    "ls": "models list",
    "fetch": "models pull",
    "download": "models pull",
}
"""Other programs' commands, and what does the same here."""
_MODELS = (".gguf", ".onnx")


def by_command(name: str, commands: Iterable[str], of_models: Iterable[str]) -> str:
    """For a command that is none; `of_models` are those of `edgespec models`."""
    meant = f"models {name}" if name in of_models else _ELSEWHERE.get(name)
    if meant is not None:
        return f"; did you mean `edgespec {meant}`?"
    return nearest(name, commands) or f": it is one of {', '.join(commands)}"


def by_argument(text: str, flags: Collection[str]) -> str:
    """For an argument without a flag, of a command with these `flags`, whose models have some."""
    if text.endswith(_MODELS) or catalogue.lookup(text) is not None:
        return f"; did you mean -m {shlex.quote(text)}?"
    fetches = "-hf" in flags
    if fetches and catalogue.repository(text):
        return f"; did you mean -hf {shlex.quote(text)}?"
    if "-p" in flags:
        return f"; did you mean -p {shlex.quote(text)}?"
    elsewhere = ", -hf fetches USER/REPO from Hugging Face" if fetches else ""
    return f": -m names a model's file{elsewhere}"
