"""Validated settings of loading, of generating and of a server, and files of them.

Knows names and ranges; opens no model and measures no memory.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict, Unpack

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SkipValidation,
    ValidationInfo,
    model_validator,
)

from edgespec.errors import UsageError, setting
from edgespec.files import cache_folder, gguf_names
from edgespec.files.regular import read_regular
from edgespec.settings.base import HIDDEN, Flag, Settings, expanded, key_of, nearest
from edgespec.settings.options import RuntimeOptions, declared, option_names
from edgespec.settings.parsing import (
    MAX_BIAS,
    MAX_PORT,
    MAX_TEXTS,
    SELF,
    biases,
    budget,
    disk_size,
    draft_named,
    rate,
)
from edgespec.settings.units import auto_bounds

DEFAULT_CTX_SIZE = 4096
"""Context of `ctx_size = 0` where there is no memory for more, and what each of several texts has
at least where there is: a model's training context can cost gigabytes of KV."""
DRAFT_CTX_SIZE = 1024
"""Tokens that a draft remembers at most, the first and the latest ones of longer texts: more hardly
help guesses."""
INT32_MAX = (1 << 31) - 1
"""Largest count: the libraries count in 32 bits."""
DAY_S = 24 * 3600
USUAL_DRAFT_MAX = 48
"""Guesses that one pass verifies, at most, where no plan says otherwise."""
MAX_CONFIG_BYTES = 1 << 20
NO_SETTING = (
    ": keys are settings of models, texts and the server, other flags such as --prompt stand on "
    "the command line"
)
"""Advice about a key that resembles none."""
MAX_DRAFTED = 1024
"""Most nodes of one pass, whose buffers grow with them."""


Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
AtLeastOne = Annotated[int, Field(ge=1, le=INT32_MAX)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Bias = Annotated[
    float,
    Field(le=MAX_BIAS, allow_inf_nan=True),
    AfterValidator(lambda bias: bias if bias >= -MAX_BIAS else -inf),
]


class LoadFields(TypedDict, total=False):
    """Keywords of `LoadSettings` for type checkers, with the options of the runtimes here."""

    draft: str | Path | None
    memory_budget: int | str
    adjustable_budget: bool
    ctx_size: int
    batch_size: int | None
    n_parallel: int | Literal["auto"]
    threads: int | None
    options: Mapping[str, RuntimeOptions]
    read_limit: int | str | None
    gpu_memory_budget: int | str | None
    prompt_cache: str | Path | None
    prompt_cache_size: int | str
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    n_gpu_layers: int
    n_gpu_layers_draft: int
    rpc: str
    provider: str
    accuracy_level: int | None


class LoadSettings(Settings):
    """The models, how they are loaded, and the memory that the whole process may take."""

    model: Annotated[Path, AfterValidator(gguf_names.in_folder)]
    """The target: a GGUF file, of a split one the first part, or an ONNX model or its folder."""
    draft: Annotated[Path | None, BeforeValidator(draft_named)] = None
    """None: the target decodes alone. "self": one that is made from it, once, where that pays."""
    optional_draft: Annotated[bool, HIDDEN] = False
    """Leave the draft out where texts are expected to be faster without it, where it does not fit,
    and where it is a head, which follows one text, and `n_parallel` asks for more."""
    memory_budget: Annotated[int | str, Flag(metavar="SIZE"), BeforeValidator(budget)] = "auto"
    """Most memory of the whole process, at its peak: bytes, 6GiB, 512M, 75% of the machine's, or
    auto, which is what is free now less a margin, and follows it where weights are paged.
    auto:1GiB-4GiB stays between two sizes and pages all weights."""
    adjustable_budget: bool = False
    """Page weights even if all fit, so that a running model can be given a smaller budget."""
    ctx_size: Annotated[Count, Flag(metavar="N", short="-c")] = 0
    """Tokens of context of a text; 0 is what the model was trained on, as far as the budget has
    room and short texts are about as fast as with 4096, or 2048 or 1024 where that does not fit.
    Several texts share one context, or more where the budget has room."""
    batch_size: Annotated[AtLeastOne | None, Flag(metavar="N", short="-b")] = None
    """Prompt tokens per pass, 64 at least, 128 with several texts at once. Default:
    planned."""
    n_parallel: Annotated[
        Annotated[int, Field(ge=1, le=MAX_TEXTS)] | Literal["auto"],
        Flag(metavar="N", short="-np"),
    ] = 1
    """Texts that are generated at once, in shared passes, or auto for as many as the budget
    affords; `serve` takes no more than leave a single text as fast as with 1. Others wait in
    line."""
    keeps_one_text_fast: Annotated[bool, HIDDEN] = False
    """With `n_parallel` auto: only as many texts as leave one that is alone about as fast as with
    1."""
    threads: Annotated[Threads | None, Flag(metavar="N", short="-t")] = None
    """Threads that compute. Default: one for each physical core that the process may use."""
    options: Mapping[str, Annotated[RuntimeOptions, SkipValidation]] = Field(default_factory=dict)
    """Options of runtimes, by the runtime's name. Each can be given by its own name, too, as
    on the command line: `cache_type_k="q8_0"`."""
    read_limit: Annotated[int | None, Flag(metavar="RATE"), BeforeValidator(rate)] = None
    """Read paged weights at this rate at most, as from a slower disk: bytes per second like 500M,
    in decimal units as storage is sold. Default: no limit."""
    gpu_memory_budget: Annotated[int | str | None, BeforeValidator(budget)] = None
    """Most memory of the GPU that computes ONNX models, the draft's first: 6GiB, 512M, 75%, or
    auto, which is what is free there now less a margin. Default: auto."""
    reserve: Annotated[int, Field(ge=0), HIDDEN] = 0
    """Bytes of the budget that are kept for what else the process does, such as a server's requests
    or a model beside this one."""
    reserve_of_token: Annotated[int, Field(ge=0), HIDDEN] = 0
    """Further ones for each token of the context."""
    prompt_cache: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Store what was computed for texts in this folder, where later prompts that begin alike find
    it, also after a restart; not for models on RPC servers. `serve` has one in the cache folder
    where that takes no memory."""
    prompt_cache_size: Annotated[int, BeforeValidator(disk_size)] = 2 << 30
    """Most bytes of the prompt cache, whose least recently used texts go first; 0 stores nothing.
    Default: 2GiB."""

    if TYPE_CHECKING:  # pydantic converts, which type checkers do not know

        def __init__(self, *, model: str | Path, **fields: Unpack[LoadFields]) -> None: ...

    @model_validator(mode="after")
    def _applies(self) -> Self:
        for runtime, options in self.options.items():
            if not isinstance(options, RuntimeOptions):
                raise UsageError(f"`options` of {runtime} are no {RuntimeOptions.__name__}")
            options.check(self)
        if "prompt_cache_size" in self.model_fields_set and self.prompt_cache is None:
            folder = f"{setting.prompt_cache}, the folder that it limits"
            raise UsageError(f"{setting.prompt_cache_size} needs {folder}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _collect_options(cls, values: Any, info: ValidationInfo) -> Any:
        """Gather what runtimes declare into `options`."""
        if not isinstance(values, Mapping) or values.keys() <= cls.model_fields.keys():
            return values
        kept = dict(values)
        options = dict(kept.pop("options", {}))
        for runtime, kind in declared().items():
            if names := kept.keys() & kind.model_fields.keys():
                given = options.get(runtime, kind()).model_dump(exclude_unset=True)
                given |= {name: kept.pop(name) for name in names}
                options[runtime] = kind.model_validate(given)
        return kept | {"options": options}

    @classmethod
    def known(cls) -> set[str]:
        return {*super().known(), *option_names()} - {"options"}

    @property
    def stores_prefixes(self) -> bool:
        """True if a prompt cache was asked for, and its memory is planned."""
        is_own = self.prompt_cache == cache_folder.prompts()
        return self.prompt_cache is not None and self.prompt_cache_size > 0 and not is_own

    @property
    def pages_all(self) -> bool:
        """True if weights are paged even if all fit."""
        return self.adjustable_budget or any(auto_bounds(self.memory_budget) or ())

    def as_given(self) -> dict[str, Any]:
        """The settings that were given, as a file or a call would give them again."""
        values = self.model_dump(exclude_unset=True, exclude={"options"})
        for options in self.options.values():
            values |= options.model_dump(exclude_unset=True)
        return values

    def but(self, fields: Mapping[str, Any]) -> LoadSettings:
        """The same settings with these fields. Raises UsageError."""
        return LoadSettings.model_validate({**self.as_given(), **fields})

    def without_draft(self) -> LoadSettings:
        """The same settings without a draft, and without those that need one."""
        dropped = {"draft", "optional_draft", *option_names("draft")}
        given = {name: value for name, value in self.as_given().items() if name not in dropped}
        return LoadSettings.model_validate(given)


class Sampling(Settings):
    """Settings of sampling. The defaults are greedy, with every filter off."""

    temperature: Annotated[float, Flag(metavar="T"), Field(ge=0)] = 0.0
    """Temperature; 0 is greedy: the highest logit, the lowest token id among equals."""
    top_k: Annotated[Count, Flag(metavar="K")] = 0
    """Keep the K most probable tokens; 0 keeps all."""
    top_p: Annotated[float, Flag(metavar="P"), Field(gt=0, le=1)] = 1.0
    """Keep the most probable tokens that together reach P; 1 keeps all."""
    min_p: Annotated[float, Flag(metavar="P"), Field(ge=0, le=1)] = 0.0
    """Keep tokens at least P times as probable as the best one; 0 keeps all."""
    repeat_penalty: Annotated[float, Flag(metavar="X"), Field(ge=0.01, le=100)] = 1.0
    """Penalty of repeated tokens; 1 is none."""
    frequency_penalty: Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)] = 0.0
    """Penalty for each earlier use of a token; 0 is none."""
    presence_penalty: Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)] = 0.0
    """Penalty of tokens that were used at all; 0 is none."""
    repeat_last_n: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 64
    """Latest tokens, prompt included, that the three penalties look at; -1 is all of them."""
    logit_bias: Annotated[
        Mapping[Annotated[int, Field(ge=0)], Bias],
        BeforeValidator(biases),
    ] = Field(default_factory=dict)
    """Make a token likelier (15043+1), rarer (15043-1) or impossible (15043-inf): added to its
    logit."""


class SamplingFields(TypedDict, total=False):
    """Keywords of `SamplingParams` for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_last_n: int
    logit_bias: Mapping[int, float]
    seed: int


class SamplingParams(Sampling):
    """Sampling parameters of one text, with the seed of its random draws."""

    seed: int = Field(default=0, ge=0)

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise UsageError if a bias is for a token that a vocabulary of `n_vocab` has not."""
        if (highest := max(self.logit_bias, default=-1)) >= n_vocab:
            said = f"{setting.logit_bias} names token {highest}"
            raise UsageError(f"{said}; the vocabulary has {n_vocab}")


class Speculation(Settings):
    """Rules and limits of guessing. The engine's settings and those of a text both inherit them."""

    pacer: Literal["best-first", "llmcad"] = "best-first"
    """Rule of `rules.pacer` that chooses the branch of the token tree that grows next."""
    fallback: Literal["marginal", "llmcad", "fixed", "full", "hsddw"] = "marginal"
    """Stop rule of `rules.stop_rules`, which says when there are enough guesses and the target
    verifies them; `marginal` weighs measured times."""
    draft_max: Annotated[int, Flag(metavar="N"), Field(ge=1, le=MAX_DRAFTED)] = USUAL_DRAFT_MAX
    """Most guesses that one pass verifies; 0 on the command line: no draft. Default: planned, since
    their buffers take memory from the weights; 48 where nothing is paged."""
    lookup: bool | None = None
    """Guess from the text so far, too: what followed when its last words occurred before. Default:
    beside a draft model, and without one if the target's weights are paged."""
    no_overlap: bool = False
    """Do not draft while the target verifies."""


class GenerateSettings(Sampling, Speculation):
    """Settings of generating a text."""

    max_tokens: Annotated[int, Flag(metavar="N", short="-n"), Field(ge=-1, le=INT32_MAX)] = 256
    """Most tokens; -1 goes on until the model ends the text or the context is full."""
    seed: Annotated[int | None, Flag(metavar="N", short="-s"), Field(ge=0, lt=1 << 64)] = None
    """Seed of the random draws. Default: -1, which chooses one and reports it."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Flag(metavar="TEXT")] = ()
    """End the text before this string. May be given several times."""
    no_draft: bool = False

    @property
    def limit(self) -> int | None:
        """`max_tokens` as the session takes it."""
        return None if self.max_tokens == -1 else self.max_tokens

    def sampling(self, seed: int, otherwise: Mapping[str, Any] | None = None) -> SamplingParams:
        """The sampling parameters; `seed` is used if `self.seed` is None.

        `otherwise` replaces the defaults of settings that were not given.
        """
        given = self.model_dump(include=Sampling.model_fields.keys() & self.model_fields_set)
        return SamplingParams.model_validate({**(otherwise or {}), **given, "seed": seed})


DRAFTING = frozenset(Speculation.model_fields.keys() - {"lookup"})
"""Settings of GenerateSettings that mean nothing where nothing guesses."""


class ServerSettings(Settings):
    """Settings of a server, which a file may say."""

    host: Annotated[str, Flag(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Flag(metavar="N"), Field(ge=0, le=MAX_PORT)] = 8080
    """Port; 0 takes a free one."""
    api_key_file: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of keys that clients must send, one a line; texts of clients with other keys stay apart.
    A single key may stand in the environment variable EDGESPEC_API_KEY."""
    reasoning_budget: Annotated[int, Flag(metavar="N"), Field(ge=-1, le=INT32_MAX)] = -1
    """Most tokens of a model's reasoning, which is then ended as its template ends it, unless a
    request names another number; 0: none. Default: -1, no limit."""
    admin_key_file: Path | None = None
    """File of keys, one a line, of those who may also change the budget. Default: everybody where
    no key is needed, otherwise nobody."""
    max_budget: Annotated[int | str | None, BeforeValidator(budget)] = None
    """Largest memory budget that clients may set. Default: that of the start."""
    allowed_host: Annotated[tuple[str, ...], Flag(metavar="NAME")] = ()
    """Host names that requests may use besides the address."""
    allowed_origin: tuple[str, ...] = ()
    """Origins of web pages that may ask from a browser (CORS), such as http://localhost:3000,
    localhost for all of this machine, or * for any."""
    alias: str | None = None
    """Name of the model in answers."""
    queue: Count = 32
    """Requests that may wait; more are refused with status 503."""
    max_body: Annotated[int | None, BeforeValidator(disk_size)] = None
    """Largest request body; the plan keeps memory for it. Default: 64 KiB and 16 bytes for each
    token of the context."""
    time_limit: Annotated[float | None, Field(ge=0, le=DAY_S)] = None
    """Most seconds of an answer from its turn on, after which it ends as if its tokens were used
    up. Default: no limit."""
    drain: Annotated[float, Field(ge=0, le=DAY_S)] = 30
    """Seconds that requests under way have after Ctrl-C or SIGTERM; a second one ends them at
    once."""
    log_json: bool = False
    """Log each request as a JSON object on one line."""


def read_config(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, by their Python names.

    A key is a setting's name or its long flag's, with `-` or `_`; all are at the top level. Paths
    are relative to the file. Raises UsageError for what is no TOML and for unknown keys.
    """
    try:
        content = tomllib.loads(read_regular(path, MAX_CONFIG_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from error
    known = LoadSettings.known() | GenerateSettings.known() | ServerSettings.known()
    names = {key_of(name): name for name in known}
    names |= {name.replace("_", "-"): name for name in known}
    settings = {}
    for key, value in content.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            advice = nearest(key, names) or NO_SETTING
            raise UsageError(f"--config {path}: unknown key {key!r}{advice}")
        if name in settings:
            raise UsageError(f"--config {path}: {key!r} is given twice, under two spellings")
        is_path = name in _PATHS and isinstance(value, str) and (name, value) != ("draft", SELF)
        settings[name] = path.parent / expanded(value) if is_path and value else value
    return settings


_PATHS = frozenset({"model", "draft", "prompt_cache", "api_key_file", "admin_key_file"})
