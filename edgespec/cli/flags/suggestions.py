"""Suggestions for unknown words on the command line, as the end of an error message.

Knows commands of other programs, such as Ollama's, and models given without a flag.
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
"""Commands of other programs, and the equivalent here."""
_MODELS = (".gguf", ".onnx")


def by_command(name: str, commands: Iterable[str], of_models: Iterable[str]) -> str:
    """Suggestion for an unknown command; `of_models` are the commands of `edgespec models`."""
    equivalent = f"models {name}" if name in of_models else _ELSEWHERE.get(name)
    if equivalent is not None:
        return f"; did you mean `edgespec {equivalent}`?"
    return nearest(name, commands) or f": it is one of {', '.join(commands)}"


def by_argument(text: str, flags: Collection[str]) -> str:
    """Suggestion for an argument without a flag, of a command that has these `flags`."""
    if text.endswith(_MODELS) or catalogue.lookup(text) is not None:
        return f"; did you mean -m {shlex.quote(text)}?"
    fetches = "-hf" in flags
    if fetches and catalogue.repository(text):
        return f"; did you mean -hf {shlex.quote(text)}?"
    if "-p" in flags:
        return f"; did you mean -p {shlex.quote(text)}?"
    elsewhere = ", -hf fetches USER/REPO from Hugging Face" if fetches else ""
    return f": -m names a model's file{elsewhere}"
