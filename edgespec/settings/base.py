"""Base class of validated settings, and their names on the command line and in files.

Defines no settings; `config` does.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, Signature, cleandoc, getsource
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

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

from edgespec.errors import UsageError

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
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Show names, defaults and meanings at the top of `help`."""
        lines, parameters = [], []
        for name, info in cls.model_fields.items():
            if not info.repr:
                continue
            default = info.get_default(call_default_factory=True, validated_data={})
            usual = Parameter.empty if info.is_required() else default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=usual))
            meaning, _, more = cls.meaning(name).partition(". ")
            shown = "" if info.is_required() else f" = {default!r}"
            lines += [f"{name}{shown}", f"    {meaning}{more and '.'}"]
        cls.__signature__ = Signature(parameters)
        cls.__doc__ = "\n".join([cleandoc(cls.__doc__ or ""), "", *lines])

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


def spell(setting: str) -> str:
    """Name of a setting on the command line."""
    return FLAGS.get(setting, "--" + setting.replace("_", "-"))


def in_flags(text: str, file: Path | None = None, in_file: Collection[str] = ()) -> str:
    """A message, in which settings stand as Python arguments in backticks, with flags in their
    place, and with keys of `file` for those that were given in it or have no flag."""

    def spelled(said: re.Match[str]) -> str:
        name, value = said.groups()
        if name not in known:
            return said[0]
        if name in in_file or name not in flagged:
            shown = f" = {_IN_FILES.get(value, value)}" if value is not None else ""
            return f"{key_of(name)}{shown} in {file if name in in_file else 'a --config file'}"
        if value in ("True", "None"):
            return spell(name) if value == "True" else f"--no-{name}"
        return spell(name) if value is None else f"{spell(name)} {value.strip(chr(34))}"

    known = {*FLAGS, *(name for kind in _kinds(Settings) for name in kind.model_fields)}
    flagged = {*_SPELLED, *(name for kind in _kinds(Settings) for name, _ in kind.flags())}
    return re.sub(r"`(\w+)(?:=([^`]*))?`", spelled, text)


def key_of(setting: str) -> str:
    """Name of a setting in a file."""
    return spell(setting).removeprefix("--")


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
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


_REASONS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "it must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "it must be a number"),
    "path_type": "it must be a path, which is text",
    "string_type": "it must be text",
    "tuple_type": "it must be a list",
}
"""Messages that replace pydantic's, by error type."""


def _describe(details: ErrorDetails, settings: type[Settings]) -> str:
    """A sentence for one of pydantic's errors."""
    name = str(details["loc"][0]) if details["loc"] else ""
    value = details["input"]
    if details["type"] == "extra_forbidden":
        meant = NAMES_ELSEWHERE.get(name, name)
        return f"unknown setting {name!r}{nearest(meant, settings.known())}"
    if details["type"] == "missing":
        return f"`{name}` is missing"
    if details["type"] in {"literal_error", "enum"}:
        known = re.findall(r"'([^']+)'", details["ctx"]["expected"])
        hint = nearest(str(value), known)
        return f"`{name}={value!r}` is unknown: it is one of {', '.join(known)}{hint}"
    if details["type"] == "string_too_short":
        return f"`{name}` is empty"
    reason = _REASONS.get(details["type"], details["msg"].replace("Input should be", "it must be"))
    return f"`{name}={value}`: {reason}"
