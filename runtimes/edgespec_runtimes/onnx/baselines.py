"""Decodes an exported model as onnxruntime itself does: its weights mapped, or resident.

For comparison only: the file as it was exported in one session. Nothing of edgespec's rewriting,
cutting, paging or engine runs here.
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
from edgespec.ports.baselines import Baseline, BaselineRequest, BaselineRun, check, measured
from edgespec.values import RoundCost
from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, MASK, POSITIONS, find_roles
from edgespec_runtimes.onnx.files.source import Source, named_model, read_source
from edgespec_runtimes.onnx.files.vocabulary import read_vocabulary
from edgespec_runtimes.onnx.graph.flow import BATCH_SCALED, simplified
from edgespec_runtimes.onnx.ort.sessions import StopFlag, translated

MMAP, RESIDENT = "mmap", "resident"

LIBRARY = f"onnxruntime {ort.__version__}"
BASELINES: Sequence[Baseline] = (
    Baseline(MMAP, "onnxruntime, weights mapped from their file and not packed"),
    Baseline(RESIDENT, "onnxruntime with its defaults, weights in memory", resident=True),
)

MAX_LOGITS_BYTES = 32 << 20
"""Most bytes of logits in a run: a prompt is read in parts, since an export computes logits after
each of its tokens."""
_ERRORS_ONLY = 3


def run(name: str, request: BaselineRequest) -> BaselineRun:
    """Load the model as `name` says, continue the prompt greedily, free.

    Raises ModelError and UsageError.
    """
    check(name, request, BASELINES)
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
            lambda prompt: decoder.generate(prompt[-1], request.n_tokens),
        )


class _ExportedModel(Closeable):
    """A whole model in one session, and its cache of keys and values as the last run returned it.

    Bound values pass from run to run without a copy of ours. Other loops were no faster: with
    arrays that Python sees, or with keys and values written to buffers that are kept.
    """

    def __init__(self, source: Source, n_threads: int, keeps_all: bool) -> None:
        where = str(source.path)
        model = simplified(source.model, where)
        self._roles = find_roles(model.graph, where)
        configs = (source.generation_config, source.config, source.genai_config)
        self.vocabulary = read_vocabulary(source.folder, self._roles.n_vocab, configs)
        # tokens that share a run share a scale, and would not be those of the engine
        scaled = any(node.op_type in BATCH_SCALED for node in model.graph.node)
        self._most = 1 if scaled else max(1, MAX_LOGITS_BYTES // (4 * self._roles.n_vocab))
        trim_heap()
        self._stop = StopFlag()
        options = _resident(n_threads) if keeps_all else _mapped(n_threads)
        self._session = _session(source.path, options)
        self._binding: Any = self._session.io_binding()
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
        """Append tokens to the past."""
        for begin in range(0, len(tokens), self._most):
            self.decode(tokens[begin : begin + self._most])

    def generate(self, token: int, n_tokens: int) -> tuple[list[int], list[RoundCost]]:
        """A token a pass, greedily, after `token`."""
        tokens: list[int] = []
        rounds: list[RoundCost] = []
        while len(tokens) < n_tokens and not (tokens and token in self.vocabulary.eog_tokens):
            began = time.perf_counter()
            logits = self.decode([token])
            pass_s = time.perf_counter() - began
            token = int(logits.argmax())
            tokens.append(token)
            wall_s = time.perf_counter() - began
            rounds.append(RoundCost(1, 0, 0, 1, 0.0, pass_s, 0.0, wall_s))
        return tokens, rounds

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens to the past; logits after the last, [n_vocab]."""
        n_seen = self._n_past + len(tokens)
        feeds = {IDS: np.array([tokens], np.int64)}
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
    """The file, loaded by onnxruntime itself. Raises ModelError."""
    try:
        with translated(StopFlag()):
            return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except EdgespecError as error:
        raise ModelError(f"{path} cannot be loaded: {error}") from error


def _resident(n_threads: int) -> Any:
    """The defaults: every optimisation, weights converted and packed once, threads that spin."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = n_threads
    return options


def _mapped(n_threads: int) -> Any:
    """The session options that decode fastest where the weights do not fit.

    Measured on 1 GiB of fp16 weights, in a cgroup of half of that at 300 MB/s. The defaults convert
    all weights to fp32 while loading, 1.9 GB at the peak, and are killed. Below the highest level
    the weights stay mapped, but in the default order 1.1 GB of converted ones are there at once,
    and that is killed, too. Ordered by priority, each is converted just before its product: 90 MB
    are private, and a token takes 3.5 s, which is what reading the whole file once takes. With a
    lower level, or without an arena, it took the same.

    Packing would make private copies: in fp16 of the few weights that are stored in fp32, which
    saved no reading since the kernel reads ahead across them; in fp32, int8 and 4 bits of all.
    4-bit products of weights that are not packed took 13 times as long as of packed ones.
    """
    options = _resident(n_threads)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options
