"""Classes by which runtimes load models, and the registry that finds the runtime of a model.

A runtime is reached by the entry point group `edgespec.runtimes`, and only when it is asked for:
importing edgespec imports no model library.
"""

from __future__ import annotations

import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from edgespec import extras
from edgespec.concurrency.worker import raise_if_cancelled
from edgespec.errors import ModelError, UsageError, setting
from edgespec.extras import entry_points
from edgespec.files.regular import open_regular, special_kind
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import EmbeddingModel, LanguageModel, Progress
from edgespec.ports.baselines import Baselines
from edgespec.settings.config import DEFAULT_CTX_SIZE
from edgespec.settings.options import ENTRY_POINTS, RuntimeOptions
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import ModelDetails, ModelInfo

FINGERPRINT_DIGITS = 16
Topic = Literal["processor", "memory", "storage", "gpu", "libraries", "cache"]

_PADDING_TOKEN = re.compile(rb"\[PAD\d+\]|<\|?(unused|reserved|extra|dummy)[^>]*>")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Settings for preparing one model."""

    path: Path
    owner: str
    """`target` or `draft`: names the rows of the plan."""
    ctx_size: int
    """Committed tokens; 0 is what the model was trained on, up to `max_ctx`."""
    max_nodes: int
    """Most nodes in one `evaluate`."""
    max_branches: int
    n_threads: int
    n_slots: int = 1
    """Texts to hold at once; a runtime that cannot holds one."""
    n_cells: int = 0
    """Tokens that these texts share, at least those of one whole context; without `ctx_size` each
    may have all of them. A runtime that cannot share gives each a context of its own."""
    fewer_nodes: tuple[int, ...] = ()
    """The plan may choose one of these instead of `max_nodes`; larger first."""
    options: RuntimeOptions | None = None
    """Options of the runtime's own; None is its defaults."""
    batch_size: int | None = None
    max_ctx: int = DEFAULT_CTX_SIZE
    target: Path | None = None
    """The model that a draft guesses for."""
    target_ctx: int = 0
    """Context of that model: a draft that follows whole texts has it instead of `max_ctx`."""
    budget_bytes: int | None = None
    """Budget of the process. Where a GPU computes, a small one asks for small batches."""
    read_limit: int | None = None
    """Most bytes per second that paged weights are read at."""
    stores_prefixes: bool = False
    """Parts of texts will be stored: the plan has what a target needs for that."""
    trace: Trace = OFF
    """Receives spans of loading and, for a target, of its passes and reads."""

    @property
    def must_guess(self) -> bool:
        """True if the plan cannot choose passes without guesses."""
        return min((self.max_nodes, *self.fewer_nodes)) > self.n_slots

    def check_context(self, n_ctx: int, n_trained: int) -> None:
        """Raise UsageError for a context of more tokens than the model was trained on."""
        if n_ctx > n_trained:
            raise UsageError(
                f"{setting.ctx_size(n_ctx)} is more than the {n_trained:,} tokens that "
                f"{self.path.name} was trained on: take at most {n_trained:,}"
            )

    @contextmanager
    def phase(self, name: str, seconds: dict[str, float]) -> Iterator[None]:
        """A phase of loading: a span, and its `seconds` if it succeeds. Raises Cancelled."""
        raise_if_cancelled()
        with self.trace.span(Track.ENGINE, f"{self.owner}: {name}"):
            began = time.perf_counter()
            yield
            seconds[name] = time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of the GPU that computes a model; sizes in bytes."""

    name: str
    """Name of the GPU, for people."""
    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    """Bytes that its libraries take besides the models."""


class Prepared(ABC):
    """A model whose needs are known and whose weights are not read."""

    if TYPE_CHECKING:  # an attribute or a property

        @property
        def info(self) -> ModelInfo: ...

    @property
    def enforced(self) -> bool:
        """True if the platform lets this runtime hold a memory budget when paging."""
        return False

    @abstractmethod
    def needs(self) -> ModelNeeds:
        """Needs for the process's memory, however it will be loaded: the same answer every time."""

    @abstractmethod
    def cancel(self) -> None:
        """Make a running `load` raise `Cancelled` soon; from any thread."""

    @abstractmethod
    def close(self) -> None: ...


class PreparedModel(Prepared):
    """A prepared model that writes or guesses texts."""

    seconds: dict[str, float]
    """Seconds that preparing and loading took so far, by phase."""
    vocabulary_fingerprint: str | None = None
    """Fingerprint of the vocabulary that a draft without a token table was made for."""

    @property
    def gpu_memory(self) -> GpuMemory | None:
        """Memory of the GPU that computes this model, divided as the process's is; None without
        one."""
        return None

    def notes(self, plan: MemoryPlan | None = None) -> Sequence[str]:
        """Sentences worth knowing about how this model runs with `plan`, or about what it needs if
        there is none; often none."""
        return ()

    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """Bytes that identify each token, in the order of ids, without padding."""

    @abstractmethod
    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        """Read the weights: as the plan says, which pages the target only, or resident and in the
        largest batches without one."""

    def place(self, gpu_bytes: int) -> Sequence[MemoryRow]:
        """Put as much as fits into `gpu_bytes` on the GPU, and return the rows that take them.

        Comes before `needs`, which are about the process's memory then. Without this, the
        CPU computes the model.
        """
        return ()

    def share_cells(self, n_cells: int) -> None:
        """Answer `needs` as if the `ModelRequest` had had this number, if they tell the bytes of a
        cell."""
        raise NotImplementedError

    def offer_features(self, layers: Sequence[int], n_values: int) -> None:
        """Have `load` make the inputs of `layers`, each of `n_values`, available, if
        `info.gives_features`. Comes before `needs`. Raises ModelError if there are no such layers.
        """
        raise NotImplementedError

    def share_with(self, target: PreparedModel, keeps_copies: bool) -> None:
        """Share weights with `target`, whose draft this is, if they fit; comes before `needs`.
        Unless it `keeps_copies`, none are needed of what the target pins."""


class PreparedEmbedder(Prepared):
    """A prepared embedding model."""

    @abstractmethod
    def load(self, plan: MemoryPlan, progress: Progress | None = None) -> EmbeddingModel:
        """Read the weights that the plan pins."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact of `edgespec doctor` about a machine, what it means, and what to do about it."""

    topic: Topic
    what: str
    """The subject: `cores`, `llama-cpp-python`."""
    says: str
    level: Literal["fine", "note", "problem"] = "fine"
    advice: str = ""
    """The next step for the user, or ""."""


class Runtime(ABC):
    """An entry point of the group `edgespec.runtimes`."""

    name: str

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """True if the file or folder looks like one of this runtime's models."""

    @abstractmethod
    def prepare(self, request: ModelRequest) -> PreparedModel:
        """Read headers, validate them, measure what the model needs. Raises ModelError."""

    def describe(self, path: Path) -> ModelDetails:
        """Details from the model's headers; no weights are read. Raises ModelError."""
        return ModelDetails(format=self.name)

    def diagnose(self) -> Sequence[Finding]:
        """Findings about its library here; known-bad combinations are problems."""
        return [Finding("libraries", self.name, "installed")]

    def gpu(self) -> str | None:
        """The name of the GPU that its library would use here; None without one, and where the
        library was built without support for it."""
        return None

    def guesses_itself(self, path: Path) -> bool:
        """True if the model has layers that guess for it, so that it is named as its own draft, and
        they can be used. Raises ModelError."""
        return False

    def embeds(self, path: Path) -> bool:
        """True if the model turns texts into vectors and writes none. Raises ModelError."""
        return False

    def prepare_embedder(self, request: ModelRequest) -> PreparedEmbedder:
        """Read headers, validate them, measure what the model needs. Raises ModelError."""
        raise ModelError(
            f"{request.path} cannot be used for vectors: {self.name} models write texts"
        )

    @property
    def baselines(self) -> Baselines | None:
        """Decoding by the library alone, for comparison; None if it cannot."""
        return None

    lends: bool = False
    """True if it serves this machine's devices to other machines."""

    def lend(
        self, host: str, port: int, budget_bytes: int | None, n_threads: int | None
    ) -> NoReturn:
        """Serve until the process ends; `budget_bytes` are for all of it. Raises BudgetError if
        they leave nothing to lend, and EdgespecError if the address cannot be used."""
        raise NotImplementedError


def vocabulary_fingerprint(tokens: Iterable[bytes]) -> str:
    """The first digits of a SHA-256 of all tokens in the order of their ids."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(len(token).to_bytes(4, "little") + token)
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def without_padding(tokens: Sequence[bytes]) -> list[bytes]:
    """A vocabulary without the unused tokens at its end, with which exporters round its size up."""
    used = list(tokens)
    while used and _PADDING_TOKEN.fullmatch(used[-1]):
        used.pop()
    return used


def even_parts(n_tokens: int, most: int) -> list[int]:
    """Sizes of as few batches of at most `most` tokens as there can be; they differ by one at most.

    A prompt cut that way has no small rest, for which libraries have kernels that round otherwise.
    """
    n_parts = -(-n_tokens // most)
    return [n_tokens // n_parts + (i < n_tokens % n_parts) for i in range(n_parts)]


def prompt_parts(n_tokens: int, most: int, tile: int = 0) -> list[range]:
    """Places of the batches of a prompt in it, as `even_parts` cuts it.

    None is smaller than `tile`, which is at most `most`, unless the prompt is: parts that would be
    begin with tokens of the one before.
    """
    ends = [*accumulate(even_parts(n_tokens, most))]
    parts = [range(start, stop) for start, stop in pairwise((0, *ends))]
    if n_tokens < tile:
        return parts
    return [range(max(0, min(p.start, p.stop - tile)), max(p.stop, tile)) for p in parts]


def installed(first: Callable[[str], bool] = lambda name: False) -> Iterator[Runtime | str]:
    """The runtimes by name, those whose name is `first` before the others, each imported when it is
    taken; in the place of one that cannot be imported, a sentence that says how to install it."""
    entries = entry_points(group=ENTRY_POINTS)
    for entry in sorted(entries, key=lambda entry: (not first(entry.name), entry.name)):
        try:
            runtime: Runtime = entry.load()
            yield runtime
        except ImportError as exc:
            way = "install the library that the system lacks, or the runtime again"
            if isinstance(exc, ModuleNotFoundError):
                way = "install it with"
            yield (
                f"the runtime '{entry.name}' cannot be imported ({exc}): "
                f"{way}: {extras.install_command(entry.name)}"
            )


def find(path: Path) -> Runtime:
    """The runtime for a model. Raises ModelError with the names of those that were tried."""
    try:
        is_missing = not path.exists()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if is_missing:
        where = f"the path given with {setting.model} or {setting.draft}"
        raise ModelError(f"{path} does not exist: check {where}")
    kind = special_kind(path.stat().st_mode)
    if kind is not None and not path.is_dir():
        raise ModelError(f"{path} is {kind}: a model is a regular file or a folder of them")
    for file in path.glob("*.onnx*") if path.is_dir() else [path]:
        _check_download(file)
    names, missing = [], []
    # first the runtimes named like the files' suffix, so that no other library is imported
    for runtime in installed(partial(_ends_with, path)):
        if isinstance(runtime, str):
            missing.append(runtime)
        elif runtime.recognises(path):
            return runtime
        else:
            names.append(runtime.name)
    known = ", ".join(names) or "none"
    complaint = f"{path} is not a model of an installed runtime (installed: {known})"
    raise ModelError("; ".join([complaint, *missing]))


def _check_download(path: Path) -> None:
    """Raise ModelError for what a download leaves in the place of a file."""
    try:
        with open_regular(path) as file:
            beginning = file.read(len(_LFS)).lstrip().lower()
    except OSError:
        return  # reported when it is opened
    if beginning == _LFS:
        raise ModelError(
            f"{path} is a Git LFS pointer, which stands for the model's file: run `git lfs pull` "
            "in its folder, or download the file itself"
        )
    if beginning.startswith((b"<!doctype", b"<html")):
        raise ModelError(
            f"{path} is a web page saved under this name: download the model's file itself (on "
            "Hugging Face its address has /resolve/, that of its page /blob/)"
        )


_LFS = b"version https://git-lfs.github.com/spec/"


def _ends_with(path: Path, name: str) -> bool:
    """True if a file, or one of a folder's, has this ending."""
    return any(path.glob(f"*.{name}")) if path.is_dir() else path.suffix == f".{name}"


def describe(path: Path) -> ModelDetails:
    """Details of the model at `path`, a file or a folder. Raises ModelError."""
    return find(path).describe(path)
