"""Tries out edgespec on one tiny model: resident and paged, alone and with a draft, each in a child
of its own, and asks llama.cpp's token-by-token decoding about every token that came out.

Knows no architecture; a crash is an outcome like any other.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError
from edgespec.extras import entry_points
from edgespec.memory import division, process
from edgespec.memory.process import peak_rss_bytes
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.settings.options import ENTRY_POINTS
from edgespec_runtimes.gguf.kernels.invariant_kernels import InvariantKernels
from edgespec_runtimes.gguf.llama.bindings import lib
from gguf_files import tiny_llama
from zoo_files import weights_pool, write_impostor, write_model
from zoo_species import NEVER_PAGED, NO_TEXT, Species

N_CTX, N_BATCH, N_TOKENS = 128, 32, 24
PROMPT = [7 + 11 * index % 280 for index in range(40)]
CUTS = ((7, 7), (N_BATCH, N_BATCH), (N_BATCH, 1))
"""Batches from which the rounding of llama.cpp's own logits is measured: of prompt and of text."""
WEIGHTS_SHARE = 0.15
"""Share of the weights for which a paged trial's budget has room beyond the smallest."""
TIME_LIMIT_S = 120
DENSE = "llama"
"""Species of quantised matrices alone, whose rounding is measured even if no token differs."""

Draft = Path | None
WAYS = {
    "resident": (False, False),
    "resident, drafted": (False, True),
    "paged": (True, False),
    "paged, drafted": (True, True),
}
"""Name of a trial: whether its weights are paged, and whether it has a draft."""
HALVES = (("resident", "paged, drafted"), ("resident, drafted", "paged"))
"""Two halves of `WAYS`: each has both values of either property."""


@dataclass(frozen=True)
class ZooRun:
    """One text, and what it took."""

    tokens: list[int]
    is_paged: bool
    peak_bytes: int
    budget_bytes: int
    drafted: int
    accepted: int
    gaps: list[float] = field(default_factory=list)
    """At each token, by how much llama.cpp's best logit leads its own."""

    @property
    def differences(self) -> list[float]:
        return [gap for gap in self.gaps if gap > 0]


@dataclass(frozen=True)
class Verdict:
    """Result of one species."""

    name: str
    runs: dict[str, ZooRun] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Ends of ways that gave no text."""
    refusal: str = ""
    """edgespec's sentence, if it takes no such model."""
    rounding: float = 0.0
    """Largest difference of llama.cpp's own logits, between batches and single tokens and
    between its kernels; measured if a token differs, and for DENSE."""

    @property
    def peak_share(self) -> float:
        """The largest share of its budget that a paged run took."""
        paged = [run.peak_bytes / run.budget_bytes for run in self.runs.values() if run.is_paged]
        return max(paged, default=0.0)

    @property
    def complaints(self) -> list[str]:
        """Faults; empty if it is refused or all its texts are llama.cpp's."""
        found = [f"{way}: {how}" for way, how in self.failures.items()]
        for way, run in self.runs.items():
            worst = max(run.differences, default=0.0)
            if worst > 2 * self.rounding:
                found.append(f"{way}: a token is {worst:.4f} below llama.cpp's")
            if WAYS[way][0] and not run.is_paged and self.name not in NEVER_PAGED:
                found.append(f"{way}: everything fitted into the budget")
            if run.is_paged and run.peak_bytes > run.budget_bytes:
                found.append(f"{way}: its peak is {self.peak_share:.3f} of the budget")
        return found


def verdict_of(fields: dict[str, Any]) -> Verdict:
    """The value that `dataclasses.asdict` took apart."""
    runs = {way: ZooRun(**run) for way, run in fields["runs"].items()}
    return Verdict(**{**fields, "runs": runs})


def warm_up() -> None:
    """Before forking: what every child would import, try out on this processor and draw anew."""
    entry_points(group=ENTRY_POINTS)
    weights_pool()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_llama().write(Path(folder) / "model.gguf")
        settings = LoadSettings(model=model, draft=model, ctx_size=N_CTX, threads=1)
        with session.load(settings, EngineSettings(remember=False)) as running:
            running.generate(PROMPT, max_tokens=2)


def try_out(species: Species, folder: Path, ways: Sequence[str] = tuple(WAYS)) -> Verdict:
    """Write the species' model and a draft for it, and try them out in some ways."""
    model, draft = folder / "model.gguf", folder / "draft.gguf"
    made = in_child(lambda: _write(species, model, draft))
    if made.how != "ok":
        return Verdict(species.name, failures={"writing": made.told})
    runs: dict[str, ZooRun] = {}
    failures: dict[str, str] = {}
    for way in ways:
        is_paged, is_drafted = WAYS[way]
        ended = try_way(model, draft if is_drafted else None, is_paged)
        if ended.how == "refused":
            sentence = ended.told.replace(f"{model}: ", "").replace(f"{model} ", "")
            return Verdict(species.name, refusal=sentence)
        if ended.how == "ok":
            runs[way] = ZooRun(**ended.value)
        else:
            failures[way] = ended.told
    texts = [list(text) for text in {tuple(run.tokens) for run in runs.values()}]
    asked = in_child(lambda: judge(model, texts, species.name == DENSE))
    if asked.how != "ok":
        return Verdict(species.name, runs, {**failures, "llama.cpp": asked.told})
    gaps, rounding = asked.value
    judged = {way: replace(run, gaps=gaps[texts.index(run.tokens)]) for way, run in runs.items()}
    return Verdict(species.name, judged, failures, rounding=rounding)


def try_way(model: Path, draft: Draft, is_paged: bool) -> Ending:
    """End of the writing of a text, with the fields of a ZooRun."""
    settings = LoadSettings(model=model, draft=draft, ctx_size=N_CTX, batch_size=N_BATCH, threads=1)
    if not is_paged:
        return in_child(lambda: speak(settings))
    named = in_child(lambda: smallest_budget(settings))
    if named.how != "ok":
        return named
    smallest_bytes, taken_bytes = named.value
    budget_bytes = int(smallest_bytes + WEIGHTS_SHARE * model.stat().st_size)
    settings = settings.model_copy(update={"memory_budget": budget_bytes})
    return in_child(lambda: speak(settings, taken_bytes))


def _write(species: Species, model: Path, draft: Path) -> None:
    if species.architecture in NO_TEXT:
        write_impostor(model, species.architecture)
        return
    write_model(model, species)
    write_model(draft, species, cousin=True)


def map_libraries() -> None:
    """Touch the pages of all libraries: a forked process has none of those that its parent used,
    and a plan counts them as they are."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, *_, name = line.split()
        if access.startswith("r") and ".so" in name:
            first, end = (int(number, 16) for number in span.split("-"))
            for address in range(first, end, mmap.PAGESIZE):
                bytes(ctypes.c_char.from_address(address))


def speak(settings: LoadSettings, taken_bytes: int | None = None) -> dict[str, Any]:
    """edgespec's greedy text, as the fields of a ZooRun, planned for a process of `taken_bytes`."""
    map_libraries()
    if taken_bytes is not None:
        # steps in which a process is planned weigh more than these models: it counts as it did
        process.footprint_bytes = lambda: taken_bytes
    with session.load(settings, EngineSettings(remember=False, step_aside=False)) as running:
        result = running.generate(PROMPT, max_tokens=N_TOKENS)
        return {
            "tokens": list(result.tokens),
            "is_paged": running.plan.paged,
            "peak_bytes": peak_rss_bytes(),
            "budget_bytes": running.plan.budget_bytes,
            "drafted": result.speculation.verified,
            "accepted": result.speculation.accepted,
        }


def smallest_budget(settings: LoadSettings) -> tuple[int, int]:
    """The least that loading needs, and what the process took by then, for which that holds."""
    map_libraries()
    measured, taken = process.footprint_bytes, []

    def counted() -> int:
        taken.append(measured())
        return taken[-1]

    process.footprint_bytes, division.PROCESS_SPREAD_BYTES = counted, 0
    try:
        session.plan(settings.model_copy(update={"memory_budget": 1}))
    except BudgetError as error:
        return error.smallest_bytes or 0, taken[-1]
    raise AssertionError("a budget of one byte was planned")


def judge(
    model: Path, texts: Sequence[list[int]], measures_rounding: bool
) -> tuple[list[list[float]], float]:
    """For each text the gap of each token, every one decoded alone; and how llama.cpp rounds, if
    asked or if there is a gap."""
    gaps, rounding = [], 0.0
    with _LlamaCpp(model) as reference:
        alone = [reference.logits(text, 1, 1) for text in texts]
        for text, single in zip(texts, alone, strict=True):
            rows = single[len(PROMPT) - 1 : -1]
            chosen = rows[np.arange(len(text)), text]
            gaps.append([float(gap) for gap in rows.max(axis=1) - chosen])
        if not measures_rounding and not any(map(any, gaps)):
            return gaps, rounding
        moved = [reference.logits(text, *cut) for cut in CUTS for text in texts]
    with _LlamaCpp(model, plain_kernels=True) as reference:
        moved += [reference.logits(text, 1, 1) for text in texts]
    for single, other in zip(alone * (len(CUTS) + 1), moved, strict=True):
        rounding = max(rounding, float(np.abs(other - single).max()))
    return gaps, rounding


class _LlamaCpp:
    """A model as llama.cpp maps it, as it computes by itself or with the kernels that edgespec has
    it use, which sum up in one order."""

    def __init__(self, path: Path, plain_kernels: bool = False) -> None:
        params = lib.llama_model_default_params()
        params.load_mode, params.use_extra_bufts, params.n_gpu_layers = 1, False, 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        shape = lib.llama_context_default_params()
        shape.n_ctx, shape.n_batch, shape.n_ubatch = N_CTX, N_BATCH, N_BATCH
        shape.n_outputs_max = N_BATCH
        shape.n_threads = shape.n_threads_batch = 1
        kernels = InvariantKernels((), ("f16", "f16"))
        with kernels.creating():
            self._context = lib.llama_init_from_model(self._model, shape)
        if plain_kernels:
            kernels.prepare(1, n_cells=1 << 20, in_tiles=False)
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(N_BATCH, 0, 1)

    def __enter__(self) -> _LlamaCpp:
        return self

    def __exit__(self, *_: object) -> None:
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def logits(self, text: Sequence[int], of_prompt: int, of_text: int) -> np.ndarray:
        """After each token of the prompt and of `text`, float32 [n_tokens, n_vocab]; so many at
        once, in a prompt that ends with the token before the last."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        parts = [*_cut(PROMPT[:-1], of_prompt), *_cut([PROMPT[-1], *text], of_text)]
        rows: list[np.ndarray] = []
        begin = 0
        for part in parts:
            self._batch.n_tokens = len(part)
            for index, token in enumerate(part):
                self._batch.token[index], self._batch.pos[index] = token, begin + index
                self._batch.n_seq_id[index], self._batch.seq_id[index][0] = 1, 0
                self._batch.logits[index] = True
            code = lib.llama_decode(self._context, self._batch)
            assert code == 0, f"llama_decode returned {code}"
            logits = lib.llama_get_logits(self._context)
            rows.append(np.ctypeslib.as_array(logits, (len(part), self._n_vocab)).copy())
            begin += len(part)
        return np.concatenate(rows)


def _cut(tokens: Sequence[int], size: int) -> list[Sequence[int]]:
    return [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]


@dataclass(frozen=True)
class Ending:
    """Report of a child: `ok` and its value, `refused` or `failed` and what it told; of one that a
    signal ended, its last line."""

    how: str
    value: Any = None
    told: str = ""


def in_child(call: Callable[[], Any]) -> Ending:
    """Result of `call` in a child of this process; its value must be JSON."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as written:
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as answer:
                json.dump(_answer(call, written.fileno()), answer)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            written.seek(0)
            last = "".join(written.read().strip().splitlines()[-1:])
            name = signal.Signals(os.WTERMSIG(status)).name
            return Ending("failed", told=f"{name} {last.rpartition('/')[2]}".strip())
    return Ending(**json.loads(text))


def _answer(call: Callable[[], Any], sink: int) -> dict[str, Any]:
    signal.alarm(TIME_LIMIT_S)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["GGML_NO_BACKTRACE"] = "1"
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    try:
        return {"how": "ok", "value": call()}
    except ModelError as error:
        return {"how": "refused", "told": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is to hear of it
        return {"how": "failed", "told": f"{type(error).__name__}: {error}"}
