"""What a user may set, checked: settings of loading and of generating, sizes, and TOML files.

It knows the names and the ranges; it knows neither models nor memory, and opens no model.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from edgespec.errors import UsageError
from edgespec.units import parse_size

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Provider = Literal["auto", "cpu", "cuda", "coreml"]
PacerName = Literal["llmcad", "best-first", "linear"]
FallbackName = Literal["marginal", "llmcad", "fixed", "full"]

FLAGS = {
    "model": "--model",
    "draft": "--model-draft",
    "max_tokens": "--n-predict",
    "temperature": "--temp",
}
"""Flags that are not spelled like their setting: they are llama.cpp's."""

DEFAULT_CTX_SIZE = 4096
"""Most that `ctx_size = 0` asks for: a model's training context can cost gigabytes of KV."""


def _budget(value: object, info: ValidationInfo) -> object:
    """`auto` and percentages stay: what they mean depends on the machine and the moment."""
    if not isinstance(value, str | int):
        return value
    text = str(value).strip().lower()
    if text == "auto":
        return text
    if text.endswith("%"):
        whole = 1 << 40
        if parse_size(text, whole) > whole:
            flag = spell(info.field_name or "memory_budget")
            raise UsageError(f"{flag} {value}: there is no more than 100% of the memory")
        return text
    return parse_size(value)


class Settings(BaseModel):
    """Frozen; what pydantic objects to becomes a UsageError with the command line's names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _as_usage_error(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise UsageError("; ".join(_describe(e, cls) for e in error.errors())) from error


class LoadSettings(Settings):
    """Which models, how they are loaded, and the memory that the whole process may take."""

    model: Path
    """The target: a GGUF file, of a split one the first part, or an ONNX model or its folder."""
    draft: Path | None = None
    """None: the target decodes alone."""
    memory_budget: Annotated[int | str, BeforeValidator(_budget)] = "auto"
    """Bytes, a percentage of the machine's memory, or `auto`: what is free now, less a margin."""
    ctx_size: int = Field(default=0, ge=0)
    """Tokens of context; 0 is what the model was trained on, up to DEFAULT_CTX_SIZE."""
    batch_size: int | None = Field(default=None, ge=1)
    """Prompt tokens per pass; None plans it."""
    threads: int | None = Field(default=None, ge=1)
    """None is every physical core that the process may use."""
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    provider: Provider = "auto"
    """What computes ONNX models; GGUF models go to a GPU by `n_gpu_layers`."""
    gpu_memory_budget: Annotated[int | str | None, BeforeValidator(_budget)] = None
    """Of the GPU that computes ONNX models: bytes, a percentage of its memory, or `auto`, which is
    what is free there now, less a margin. None is `auto` where there is such a GPU."""
    n_gpu_layers: int = Field(default=0, ge=0)
    n_gpu_layers_draft: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _applies(self) -> Self:
        if self.gpu_memory_budget is not None and self.provider in {"cpu", "coreml"}:
            raise UsageError(
                f"--gpu-memory-budget has no effect with --provider {self.provider}, which "
                "computes in the process's memory: leave one of them out"
            )
        if self.draft is None and self.n_gpu_layers_draft:
            raise UsageError("--n-gpu-layers-draft needs a draft: name one with --model-draft")
        if self.flash_attn == "off" and self.cache_type_v in QUANTISED:
            raise UsageError(
                f"--cache-type-v {self.cache_type_v} needs flash attention: "
                "leave --flash-attn at auto or on, or use f16"
            )
        return self


class GenerateSettings(Settings):
    """How text is generated. The defaults are greedy, with every filter off."""

    max_tokens: int = Field(default=256, ge=-1)
    """-1 goes on until the model ends the text or the context is full."""
    temperature: float = Field(default=0.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repeat_penalty: float = Field(default=1.0, gt=0)
    repeat_last_n: int = Field(default=64, ge=-1)
    seed: int | None = Field(default=None, ge=0, lt=1 << 64)
    """None draws one, which is reported."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    no_draft: bool = False
    pacer: PacerName = "best-first"
    fallback: FallbackName = "marginal"
    draft_max: int = Field(default=48, ge=1)
    """Most drafted nodes that one pass verifies."""
    no_overlap: bool = False
    """Never draft beside a pass."""

    @property
    def limit(self) -> int | None:
        """`max_tokens` as the session takes it."""
        return None if self.max_tokens == -1 else self.max_tokens

    @model_validator(mode="after")
    def _applies(self) -> Self:
        if self.no_draft:
            idle = sorted(DRAFTING & self.model_fields_set)
            if idle:
                raise UsageError(f"{spell(idle[0])} has no effect without a draft: leave it out")
        return self


DRAFTING = frozenset({"pacer", "fallback", "draft_max", "no_overlap"})
"""Settings of GenerateSettings that mean nothing without a draft."""

QUANTISED = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"})


def spell(setting: str) -> str:
    """The command line's name of a setting."""
    return FLAGS.get(setting, "--" + setting.replace("_", "-"))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a name that resembles a known one, else nothing."""
    found = get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def read_config(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, by their Python names.

    A key is a setting's name or its long flag's, with `-` or `_`; all are at the top level. Paths
    are relative to the file. Raises UsageError for what is no TOML and for unknown keys.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from error
    names = {spell(name).removeprefix("--"): name for name in _SETTINGS}
    names |= {name.replace("_", "-"): name for name in _SETTINGS}
    settings = {}
    for key, value in content.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            raise UsageError(f"--config {path}: unknown key {key!r}{nearest(key, names)}")
        if name in settings:
            raise UsageError(f"--config {path}: {key!r} is given twice, under two spellings")
        is_path = name in {"model", "draft"} and isinstance(value, str)
        settings[name] = path.parent / Path(value).expanduser() if is_path else value
    return settings


_SETTINGS = (*LoadSettings.model_fields, *GenerateSettings.model_fields)


def _describe(details: ErrorDetails, settings: type[Settings]) -> str:
    """One sentence for one of pydantic's objections."""
    name = str(details["loc"][0]) if details["loc"] else ""
    value = details["input"]
    if details["type"] == "extra_forbidden":
        return f"unknown setting {name!r}{nearest(name, settings.model_fields)}"
    if details["type"] == "missing":
        return f"{spell(name)} is missing"
    if details["type"] == "literal_error":
        known = re.findall(r"'([^']+)'", details["ctx"]["expected"])
        hint = nearest(str(value), known)
        return f"{spell(name)} {value!r} is unknown: it is one of {', '.join(known)}{hint}"
    if details["type"] == "string_too_short":
        return f"{spell(name)} is empty"
    reason = details["msg"].replace("Input should be", "it must be")
    return f"{spell(name)} {value}: {reason}"
