"""Base class of validated settings, and their names on the command line and in files.

Defines no settings; `config` does.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from edgespec.errors import Sentence, UsageError, setting

FLAGS = {
    "model": "--model",
    "draft": "--model-draft",
    "max_tokens": "--n-predict",
    "temperature": "--temp",
    "max_depth": "--draft-depth",
    "n_parallel": "--parallel",
    "no_draft": "--no-draft",
    "use_chat_template": "--chat-template",
}
"""Flags that differ from the setting's name; most are llama.cpp's."""

NAMES_ELSEWHERE = {
    "draft_model": "draft",
    "model_path": "model",
    "n_batch": "batch_size",
    "n_ctx": "ctx_size",
    "n_threads": "threads",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
}
"""llama-cpp-python's names of settings that have another name here."""


Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class Flag:
    """Spelling of a setting on the command line, in the annotation of its field."""

    help: str = ""
    """Help text; without one it is the field's docstring."""
    metavar: str = ""
    """Placeholder of the value; a switch has none."""
    short: str | None = None


HIDDEN = Field(repr=False)
"""Annotation of a setting that only commands set: programs are not told of it."""


class Settings(BaseModel):
    """Frozen settings, whose validation raises UsageError."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def meaning(cls, name: str) -> str:
        """Meaning of a setting, its docstring in one line; empty without the source."""
        kinds = (kind for kind in cls.__mro__ if issubclass(kind, Settings))
        texts = (_docstrings(kind.__module__).get((kind.__name__, name)) for kind in kinds)
        return " ".join(next(filter(None, texts), "").split())

    @classmethod
    def known(cls) -> set[str]:
        """Names of the settings."""
        return set(cls.model_fields)

    @classmethod
    def flags(cls) -> Iterator[tuple[str, Flag]]:
        """Names of the settings that say how they are spelled as flags, and those flags."""
        for name, info in cls.model_fields.items():
            yield from ((name, flag) for flag in info.metadata if isinstance(flag, Flag))

    @model_validator(mode="wrap")
    @classmethod
    def _as_usage_error(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise UsageError("; ".join(_describe(e, cls) for e in error.errors())) from error

    @field_validator("*", mode="before")
    @classmethod
    def _reject_what_is_no_value(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation not in (bool, bool | None):
            raise PydanticCustomError("bool", f"it must not be {str(value).lower()}")
        if value == "" and annotation in (Path, Path | None):
            raise PydanticCustomError("string_too_short", "it is empty")
        return value


@cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """Docstrings of fields by class and name; none without the source. pydantic's own reading of
    them takes 40 ms of every start."""
    try:
        tree = ast.parse(getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        (kind.name, field.target.id): str(text.value.value)
        for kind in tree.body
        if isinstance(kind, ast.ClassDef)
        for field, text in pairwise(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def spell(name: str) -> str:
    """Name of a setting on the command line."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def in_flags(text: str, file: Path | None = None, in_file: Collection[str] = ()) -> str:
    """A message with flags in the place of settings, and with keys of `file` for those that were
    given in it or have no flag."""

    def spelled(said: str) -> str:
        name, _, value = said.partition("=")
        if name in in_file or name not in flagged:
            shown = f" = {_IN_FILES.get(value, value)}" if value else ""
            return f"{key_of(name)}{shown} in {file if name in in_file else 'a --config file'}"
        if value == "None":
            return f"--no-{name}"
        return spell(name) + (f" {value.strip(chr(34))}" if value not in ("", "True") else "")

    flagged = {*_SPELLED, *(name for kind in _kinds(Settings) for name, _ in kind.flags())}
    return Sentence(text).spelled(spelled)


def key_of(name: str) -> str:
    """Name of a setting in a file."""
    return spell(name).removeprefix("--")


_IN_FILES = {"True": "true", "False": "false"}
_SPELLED = ("model", "draft", "no_draft", "use_chat_template")
"""Settings whose flags commands add by themselves."""


def _kinds(kind: type[Settings]) -> Iterator[type[Settings]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if `name` is a prefix of or similar to a known name, else empty."""
    known = sorted(known)
    begun = sorted((full for full in known if len(name) > 2 and full.startswith(name)), key=len)
    found = begun or get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def expanded(path: str) -> Path:
    """The path with `~` and `~name` expanded, if such a home folder is known."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own raises for unknown names


_SAID = {"missing": "missing", "string_too_short": "empty"}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "path": "a path, which is text",
    "tuple": "a list",
}
"""Types in messages, by the first word of pydantic's kinds of errors."""


def _describe(details: ErrorDetails, settings: type[Settings]) -> str:
    """A sentence for one of pydantic's errors."""
    name = str(details["loc"][0]) if details["loc"] else ""
    named, value, kind = getattr(setting, name), details["input"], details["type"]
    if kind == "extra_forbidden":
        meant = NAMES_ELSEWHERE.get(name, name)
        return f"unknown setting {name!r}{nearest(meant, settings.known())}"
    if kind in _SAID:
        return f"{named} is {_SAID[kind]}"
    if kind in {"literal_error", "enum"}:
        choices: Any = settings.model_fields[name].annotation
        known = [str(one) for one in get_args(choices) or choices]
        hint = nearest(str(value), known)
        return f"{named(repr(value))} is unknown: it is one of {', '.join(known)}{hint}"
    reason = details["msg"].replace("Input should be", "it must be")
    if type_ := _TYPES.get(kind.partition("_")[0]):
        reason = f"it must be {type_}"
    return f"{named(value)}: {reason}"
