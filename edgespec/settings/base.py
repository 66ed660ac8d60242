"""Base class of validated settings, and their names on the command line and in files.

Defines no settings; `config` does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
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
    "n_parallel": "--parallel",
    "no_draft": "--no-draft",
    "use_chat_template": "--chat-template",
}
"""Flags that differ from the setting's name; most are llama.cpp's."""

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


class Settings(BaseModel, extra="forbid"):
    """Frozen settings, whose validation raises UsageError."""

    model_config = ConfigDict(
        frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )

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

    @field_validator("*", mode="wrap")
    @classmethod
    def _validate(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation not in (bool, bool | None):
            raise PydanticCustomError("bool", f"it must not be {str(value).lower()}")
        if value == "" and annotation in (Path, Path | None):
            raise PydanticCustomError("string_too_short", "it is empty")
        try:
            return handler(value)
        except UsageError as error:  # of parsing; it gets the name of the setting
            raise PydanticCustomError("usage", "{said}", {"said": error.message}) from error


def spell(name: str) -> str:
    """Name of a setting on the command line."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def in_flags(text: str, file: Path | None = None, in_file: Collection[str] = ()) -> str:
    """A message with flags in the place of settings, and with keys of `file` for those that were
    given in it or have no flag."""

    def spelled(said: str) -> str:
        name, _, value = said.replace('"', "").partition("=")
        if name in in_file or name not in flagged:
            value = value.lower() if value in ("True", "False") else value
            shown = f" = {value}" if value else ""
            return f"{key_of(name)}{shown} in {file if name in in_file else 'a --config file'}"
        if value == "None":
            return f"--no-{name}"
        return spell(name) + (f" {value}" if value not in ("", "True") else "")

    flagged = {name for kind in _kinds(Settings) for name, _ in kind.flags()}
    flagged |= {"model", "draft", "no_draft", "use_chat_template"}  # commands add them
    return Sentence(text).spelled(spelled)


def key_of(name: str) -> str:
    """Name of a setting in a file."""
    return spell(name).removeprefix("--")


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


def _describe(details: ErrorDetails, settings: type[Settings]) -> str:
    """A sentence for one of pydantic's errors."""
    name, kind = str(details["loc"][0]) if details["loc"] else "", details["type"]
    if kind == "extra_forbidden":
        return f"unknown setting {name!r}{nearest(name, settings.known())}"
    named = getattr(setting, name)
    if kind == "missing":
        return f"{named} is missing"
    wrong = "it must be a path" if kind == "path_type" else details["msg"]
    wrong = wrong.replace("Input should be", "it must be").replace("valid tuple", "list")
    return f"{named(details['input'])}: {wrong}"
