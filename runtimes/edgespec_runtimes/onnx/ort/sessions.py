"""Wraps onnxruntime: sessions, runs with bound memory, and translated errors.

Knows names, shapes and addresses, but not what a graph computes or where weights come from.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

from edgespec.concurrency.owning import Closeable
from edgespec.errors import Cancelled, EdgespecError, ModelError
from edgespec.memory.heap import large_blocks_mapped
from edgespec_runtimes.onnx.ort.devices import CPU_PROVIDER

_ERRORS: tuple[type[Exception], ...] = (
    # a run with bound memory, and a message that is not UTF-8, fail with Python's own errors
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
_CPU = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
_NO_MEMORY = re.compile(r"bad.alloc|failed to allocate|out of memory", re.IGNORECASE)
"""onnxruntime's words where memory is short; else what it refuses to compute contradicts itself."""
SAVED_WEIGHTS = ".data"
"""Suffix of the file with the weights of a saved graph."""
_SILENT = 4
"""onnxruntime's log level FATAL; errors arrive as exceptions."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A tensor at an address, whose memory is owned by its creator."""

    kind: type[np.generic]
    shape: tuple[int, ...]
    address: int

    def array(self) -> np.ndarray[Any, Any]:
        """A NumPy array over the tensor's memory."""
        n_bytes = math.prod(self.shape) * np.dtype(self.kind).itemsize
        memory = (ctypes.c_ubyte * n_bytes).from_address(self.address)
        array: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory).view(self.kind)
        return array.reshape(self.shape)


class StopFlag:
    """A flag in onnxruntime's options that stops runs and loading."""

    def __init__(self) -> None:
        self.options: Any = ort.RunOptions()
        self.options.log_severity_level = _SILENT
        # every run reads it, which would raise an exception if it were not set
        self.options.add_run_config_entry("gpu_graph_id", "-1")
        self._loading: Any = None

    @property
    def is_set(self) -> bool:
        return bool(self.options.terminate)

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self.options.terminate = value
        if self._loading is not None and value:
            self._loading.set_load_cancellation_flag(True)

    def while_loading(self, options: Any) -> None:
        """Make the creation of a session with these options stoppable, too."""
        self._loading = options
        options.set_load_cancellation_flag(self.is_set)


class OrtSession(Closeable):
    """An onnxruntime session with the binding that its runs share; for one thread at a time."""

    def __init__(
        self,
        model: bytes,
        what: str,
        n_threads: int,
        providers: Sequence[tuple[str, Mapping[str, str]]],
        weights_folder: Path | None = None,
        stop: StopFlag | None = None,
        constants: Mapping[str, Any] | None = None,
        keeps_memory: bool = True,
        saved_as: Path | None = None,
        is_optimised: bool = False,
    ) -> None:
        """`what` names the model in errors; `providers` has names and options, best first.

        External weights are in `weights_folder`, or given as `constants`, OrtValues by name. With
        `keeps_memory`, memory of runs is kept in an arena. `saved_as` gets the graph as
        onnxruntime optimised it, and a file beside it with the suffix `.data` its weights, as they
        are and packed; `is_optimised` says that the graph was saved so. Raises ModelError for a
        graph that onnxruntime cannot run, Cancelled once `stop` is set.
        """
        # messages about providers go to the process's logger, and would be printed
        ort.set_default_logger_severity(_SILENT)
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = n_threads
        options.inter_op_num_threads = 1
        # an arena keeps the memory of the largest run, so that runs need no new pages; a memory
        # pattern would reserve memory for every shape seen
        options.enable_cpu_mem_arena = keeps_memory
        options.enable_mem_pattern = False
        # spinning threads would take the cores from the other model
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if weights_folder is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(weights_folder))
        if saved_as is not None:
            _save_packed(options, saved_as)
        if is_optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._is_elsewhere = providers[0][0] != CPU_PROVIDER
        if self._is_elsewhere:
            # packing is specific to a kernel, and impossible for bound weights
            options.add_session_config_entry("ep.cuda.fpa_intb_gemm", "0")
        if stop is not None:
            stop.while_loading(options)
        if constants:
            options.add_external_initializers(list(constants), list(constants.values()))
        self._made_with = (what, n_threads, tuple(providers))
        # sessions that are created in every pass use the heap's pages again
        large_blocks = nullcontext() if constants else large_blocks_mapped()
        try:
            with large_blocks:
                self._session: Any = ort.InferenceSession(
                    model,
                    options,
                    providers=[(name, dict(more)) for name, more in providers],
                    enable_fallback=0,
                )
        except _ERRORS as error:
            if stop is not None and stop.is_set:
                raise Cancelled("loading was cancelled") from error
            raise ModelError(f"onnxruntime cannot run {what}: {_reason(error)}") from error
        # not the Python wrappers, which take a tenth of a small model's step
        self._native: Any = self._session._sess
        self._binding: Any = self._session.io_binding()._iobinding
        self._kept: tuple[Mapping[str, Bound], Mapping[str, Bound]] = ({}, {})
        """Inputs and outputs that stay bound."""
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def keep_bound(self, inputs: Mapping[str, Bound], outputs: Mapping[str, Bound]) -> None:
        """Bind tensors for all runs from now on: binding takes a tenth of a small model's step."""
        self._kept = (inputs, outputs)
        with translated(StopFlag()):
            self._unbind()

    def run(
        self,
        inputs: dict[str, Any],
        outputs: dict[str, Bound | None],
        stop: StopFlag,
    ) -> dict[str, Any]:
        """Run on OrtValues, contiguous arrays or Bound tensors.

        Returns the outputs bound to None; others are written to their bound memory. Raises
        Cancelled, EdgespecError, and ModelError for a graph that cannot be computed.
        """
        binding = self._binding
        with translated(stop, None if self._is_elsewhere else self._made_with[0]):
            for name, value in inputs.items():
                if isinstance(value, Bound):
                    binding.bind_input(name, _CPU, value.kind, value.shape, value.address)
                elif isinstance(value, np.ndarray):
                    binding.bind_input(name, value)
                else:
                    binding.bind_ortvalue_input(name, getattr(value, "_ortvalue", value))
            for name, place in outputs.items():
                if place is None:
                    binding.bind_output(name, _CPU)
                else:
                    binding.bind_output(name, _CPU, place.kind, place.shape, place.address)
            if self._is_elsewhere:
                binding.synchronize_inputs()  # binding copied them to the device
            try:
                self._native.run_with_iobinding(binding, stop.options)
                values = self._results(outputs)
            except BaseException:
                self._unbind()
                raise
            if any(self._kept):
                for name in values:  # the results are the caller's alone
                    binding.bind_output(name, _CPU)
            else:
                self._unbind()
        return values

    def _results(self, outputs: Mapping[str, Bound | None]) -> dict[str, Any]:
        """Values of the outputs bound to None, which follow those that stay bound."""
        if None not in outputs.values():
            return {}
        results, n_kept = self._binding.get_outputs(), len(self._kept[1])
        return {
            name: results[n_kept + i]
            for i, (name, place) in enumerate(outputs.items())
            if place is None
        }

    def _unbind(self) -> None:
        """Unbind everything but what is kept."""
        binding, (inputs, outputs) = self._binding, self._kept
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        for name, one in inputs.items():
            binding.bind_input(name, _CPU, one.kind, one.shape, one.address)
        for name, one in outputs.items():
            binding.bind_output(name, _CPU, one.kind, one.shape, one.address)

    def like(
        self,
        model: bytes,
        weights_folder: Path | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> OrtSession:
        """A session of another graph with the same settings, that keeps no memory between runs."""
        return OrtSession(
            model, *self._made_with, weights_folder, constants=constants, keeps_memory=False
        )

    def close(self) -> None:
        self._binding = self._native = self._session = None


def _save_packed(options: Any, path: Path) -> None:
    """Make a session with these options write its graph and its weights, packed where it does."""
    options.optimized_model_filepath = str(path)
    for key, setting in {
        "optimized_model_external_initializers_file_name": path.with_suffix(SAVED_WEIGHTS).name,
        "optimized_model_external_initializers_min_size_in_bytes": "128",
        "save_external_prepacked_constant_initializers": "1",
    }.items():
        options.add_session_config_entry(f"session.{key}", setting)


def value(array: np.ndarray) -> Any:
    """An OrtValue on the memory of an array, which it references."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


@contextmanager
def translated(stop: StopFlag, model: str | None = None) -> Iterator[None]:
    """Translate onnxruntime's errors of a run; raises Cancelled if `stop` was set.

    A `model` is to blame for what is not a lack of memory: a processor does not fail otherwise.
    """
    try:
        yield
    except _ERRORS as error:
        if stop.is_set:
            raise Cancelled("the model was asked to stop") from error
        reason = _reason(error)
        if model is not None and not _NO_MEMORY.search(reason):
            raise ModelError(
                f"{model} cannot be computed: {reason}; export or copy it again"
            ) from error
        raise EdgespecError(f"onnxruntime failed to compute: {reason}") from error
    if stop.is_set:
        raise Cancelled("the model was asked to stop")


def _reason(error: BaseException) -> str:
    """onnxruntime's message in one line, without its prefix of codes."""
    text = " ".join(str(error).split())
    return text.rpartition("[ONNXRuntimeError] : ")[2][:400]
