"""JSON values that are text where a template splices them into text.

Templates disagree about the arguments of calls and about content: some read an object or a list of
parts, others join a string. Both find what they expect. Knows no template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class _Spliced:
    """Joins strings as its text does; its other base class decides everything else."""

    __slots__ = ()
    _text: str

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> Any:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self._text if isinstance(other, str) else NotImplemented


class CallArguments(_Spliced, dict[str, Any]):
    """Arguments of a call: an object, and the JSON text that the request has for it.

    It has no public attributes besides those of `dict`: to a template they would be arguments.
    """

    __slots__ = ("_text",)

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self._text = text


def changed(arguments: CallArguments, change: Callable[[Any], Any]) -> CallArguments:
    """The arguments with `change` applied to their names, their values and their text."""
    values = {change(name): change(value) for name, value in arguments.items()}
    return CallArguments(values, change(str(arguments)))


class TextParts(_Spliced, list[dict[str, str]]):
    """Content as a list of one text part, with the methods of a string besides those of a list."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        super().__init__([{"type": "text", "text": text}])
        self._text = text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._text, name)
