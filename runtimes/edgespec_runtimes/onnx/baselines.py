"""Baselines: decodes an unmodified export with onnxruntime, with weights mapped or resident.

For comparison only: the exported file in one session, without edgespec's rewriting, cutting, paging
and engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper

from edgespec.concurrency.owning import Closeable
from edgespec.errors import EdgespecError, ModelError
from edgespec.memory.heap import trim_heap
from edgespec.ports.baselines import Baseline, BaselineRequest, BaselineRun, Pick, measured
from edgespec.values import RoundStats
from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, MASK, POSITIONS, find_roles
from edgespec_runtimes.onnx.files.source_model import SourceModel, named_model, read_source
from edgespec_runtimes.onnx.files.vocabulary import read_vocabulary
from edgespec_runtimes.onnx.graph.flow import BATCH_SCALED, has_any, simplified
from edgespec_runtimes.onnx.graph.variants import fixed_value, is_merged
from edgespec_runtimes.onnx.ort.sessions import StopFlag, translated

MMAP, RESIDENT = "mmap", "resident"

LIBRARY = f"onnxruntime {ort.__version__}"
BASELINES: Sequence[Baseline] = (
    Baseline(MMAP, "onnxruntime, weights mapped from their file and not packed"),
    Baseline(RESIDENT, "onnxruntime with its defaults, weights in memory", resident=True),
)

MAX_LOGITS_BYTES = 32 << 20
"""Most bytes of logits in a run; a prompt is split, because an export computes logits of all its
tokens."""
_ERRORS_ONLY = 3


def run(name: str, request: BaselineRequest) -> BaselineRun:
    """Continue the prompt with baseline `name`. Raises ModelError and UsageError."""
    with ExitStack() as owned:
        began = time.perf_counter()
        source = read_source(named_model(request.model))
        decoder = owned.enter_context(_ExportedModel(source, request.n_threads, name == RESIDENT))
        load_s = time.perf_counter() - began
        return measured(
            request,
            load_s,
            decoder.vocabulary,
            decoder.read,
            lambda prompt: decoder.generate(prompt, request.n_tokens, request.pick),
        )


class _ExportedModel(Closeable):
    """A whole model in one session, with the KV cache that the last run returned.

    Outputs are bound as the next run's inputs without a copy. NumPy arrays, or preallocated buffers
    for keys and values, were not faster.
    """

    def __init__(self, source: SourceModel, n_threads: int, keeps_all: bool) -> None:
        where = str(source.path)
        model = simplified(source.model, where)
        self._roles = find_roles(model.graph, where)
        configs = (source.generation_config, source.config, source.genai_config)
        self.vocabulary = read_vocabulary(source.folder, self._roles.n_vocab, configs)
        # tokens in one run share a quantisation scale, and would differ from the engine's
        alone = has_any(model.graph, BATCH_SCALED) or is_merged(model.graph)
        self._most = 1 if alone else max(1, MAX_LOGITS_BYTES // (4 * self._roles.n_vocab))
        trim_heap()
        self._stop = StopFlag()
        options = _resident(n_threads) if keeps_all else _mapped(n_threads)
        self._session = _session(source.path, options)
        self._binding: Any = self._session.io_binding()
        chosen = [
            (value.name, fixed_value(value.name, len(value.shape)))
            for value in self._session.get_inputs()
        ]
        self._chosen = {name: array for name, array in chosen if array is not None}
        self._outputs = [output.name for output in self._session.get_outputs()]
        kind = helper.tensor_dtype_to_np_dtype(self._roles.kv_kind)
        nothing = np.empty((1, self._roles.kv_heads, 0, self._roles.head_size), kind)
        self._past = {
            name: ort.OrtValue.ortvalue_from_numpy(nothing)
            for layer in self._roles.past
            for name in layer
        }
        self._n_past = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the cache."""
        for begin in range(0, len(tokens), self._most):
            self.decode(tokens[begin : begin + self._most])

    def generate(
        self, prompt: Sequence[int], n_tokens: int, pick: Pick
    ) -> tuple[list[int], list[RoundStats]]:
        """Generate after `prompt`, whose last token is not read yet, one token per pass."""
        tokens: list[int] = []
        rounds: list[RoundStats] = []
        token = prompt[-1]
        while len(tokens) < n_tokens and not (tokens and token in self.vocabulary.eog_tokens):
            began = time.perf_counter()
            logits = self.decode([token])
            pass_s = time.perf_counter() - began
            token = pick(logits, [*prompt, *tokens])
            tokens.append(token)
            wall_s = time.perf_counter() - began
            rounds.append(RoundStats(1, 0, 0, 1, 0.0, pass_s, 0.0, wall_s))
        return tokens, rounds

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens to the cache; returns the logits after the last one, [n_vocab]."""
        n_seen = self._n_past + len(tokens)
        feeds = {IDS: np.array([tokens], np.int64), **self._chosen}
        if self._roles.has_mask:
            feeds[MASK] = np.ones((1, n_seen), np.int64)
        if self._roles.has_positions:
            feeds[POSITIONS] = np.arange(self._n_past, n_seen, dtype=np.int64)[None]
        binding = self._binding
        with translated(self._stop):
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name, value in self._past.items():
                binding.bind_ortvalue_input(name, value)
            for name in self._outputs:
                binding.bind_output(name, "cpu")
            self._session.run_with_iobinding(binding, self._stop.options)
            results = dict(zip(self._outputs, binding.get_outputs(), strict=True))
            logits: np.ndarray = results[LOGITS].numpy()[0, -1]
        layers = zip(self._roles.past, self._roles.present, strict=True)
        pairs = [pair for past, present in layers for pair in zip(past, present, strict=True)]
        self._past = {past: results[present] for past, present in pairs}
        self._n_past = n_seen
        return logits

    def close(self) -> None:
        self._past = {}
        self._binding = self._session = None


def _session(path: Path, options: Any) -> Any:
    """Load the file with onnxruntime. Raises ModelError."""
    try:
        with translated(StopFlag()):
            return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except EdgespecError as error:
        raise ModelError(f"{path} cannot be loaded: {error}") from error


def _resident(n_threads: int) -> Any:
    """Default session options: all optimisations, weights converted and packed, spinning
    threads."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = n_threads
    return options


def _mapped(n_threads: int) -> Any:
    """The fastest session options for weights that do not fit into memory.

    With the defaults, or in the default order, all weights are converted to fp32 at once, and the
    process is killed in a cgroup of half their size. In priority order each is converted just
    before its product. Packing would create private copies.
    """
    options = _resident(n_threads)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options
