"""Everything that touches onnxruntime: sessions, runs into given memory, and its errors translated.

Knows names, shapes and addresses; what a graph computes and where weights come from is not its
business.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

from edgespec.concurrency.owning import Closeable
from edgespec.errors import Cancelled, EdgespecError, ModelError
from edgespec_runtimes.onnx.ort.devices import CPU_PROVIDER, Device

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
_SILENT = 4
"""onnxruntime's level FATAL: what matters arrives as an exception."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A tensor that lies at an address, for as long as whoever made this keeps it there."""

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
    """A flag that ends running and coming runs, and loading; onnxruntime's options carry it."""

    def __init__(self) -> None:
        self.options: Any = ort.RunOptions()
        self.options.log_severity_level = _SILENT
        # Every run asks for it, and pays for an exception where it is not set.
        self.options.add_run_config_entry("gpu_graph_id", "-1")
        self._loading: Any = None

    def set(self) -> None:
        self.options.terminate = True
        if self._loading is not None:
            self._loading.set_load_cancellation_flag(True)

    def clear(self) -> None:
        self.options.terminate = False

    def while_loading(self, options: Any) -> None:
        """Let a session that is made with these options be stopped, too."""
        self._loading = options
        options.set_load_cancellation_flag(self.is_set())

    def is_set(self) -> bool:
        return bool(self.options.terminate)


class OrtSession(Closeable):
    """One onnxruntime session and the binding that its runs share; for one thread at a time."""

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
    ) -> None:
        """`what` names the model in errors, `providers` are names and options, best first; external
        weights are looked up in `weights_folder` or given as `constants`, OrtValues by name.
        `keeps_memory`: what runs take stays taken.

        Raises ModelError for a graph that onnxruntime cannot run, Cancelled once `stop` is set.
        """
        # what concerns providers goes to a logger of the process, and would be printed
        ort.set_default_logger_severity(_SILENT)
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = n_threads
        options.inter_op_num_threads = 1
        # An arena keeps what the largest run took, so that no run waits for pages; a pattern would
        # reserve that for every shape that was seen.
        options.enable_cpu_mem_arena = keeps_memory
        options.enable_mem_pattern = False
        # Threads that spin while they wait take the cores from the other model.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if weights_folder is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(weights_folder))
        first_provider = providers[0][0]
        if first_provider != CPU_PROVIDER:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            # packs MatMulNBits weights in a kernel's own way, which bound weights cannot be
            options.add_session_config_entry("ep.cuda.fpa_intb_gemm", "0")
        if stop is not None:
            stop.while_loading(options)
        if constants:
            options.add_external_initializers(list(constants), list(constants.values()))
        self._made_with = (what, n_threads, tuple(providers))
        try:
            self._session: Any = ort.InferenceSession(
                model,
                options,
                providers=[(name, dict(more)) for name, more in providers],
                enable_fallback=0,
            )
        except _ERRORS as error:
            if stop is not None and stop.is_set():
                raise Cancelled("loading was cancelled") from error
            raise ModelError(f"onnxruntime cannot run {what}: {_reason(error)}") from error
        # Their wrappers look options and devices up in every call: a tenth of a small model's step.
        self._native: Any = self._session._sess
        self._binding: Any = self._session.io_binding()._iobinding
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        self._is_elsewhere = first_provider != CPU_PROVIDER
        self.operators = _by_provider(self._session) if self._is_elsewhere else {}
        """Operators of each kind by provider; empty where the CPU alone was asked for."""
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def run(
        self,
        inputs: dict[str, Any],
        outputs: dict[str, Bound | None],
        stop: StopFlag,
    ) -> dict[str, Any]:
        """Run on OrtValues, contiguous arrays or Bound tensors; returns what is bound to None.

        The other outputs are written where they are bound. Raises Cancelled and EdgespecError.
        """
        binding = self._binding
        with translated(stop):
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
                results = binding.get_outputs()
                values = {
                    name: results[i]
                    for i, (name, place) in enumerate(outputs.items())
                    if place is None
                }
            finally:
                binding.clear_binding_inputs()
                binding.clear_binding_outputs()
        return values

    def like(
        self,
        model: bytes,
        weights_folder: Path | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> OrtSession:
        """A session of another graph, made like this one, that keeps nothing between runs."""
        return OrtSession(
            model, *self._made_with, weights_folder, constants=constants, keeps_memory=False
        )

    def close(self) -> None:
        self._binding = self._native = self._session = None


def value(array: np.ndarray) -> Any:
    """An OrtValue of an array, which it keeps alive."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _by_provider(session: Any) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        kinds = (node.op_type for node in part.get_nodes())
        found.setdefault(part.ep_name, Counter()).update(kinds)
    return found


def room_on(device: Device, kind: int, shape: Sequence[int]) -> Any:
    """An OrtValue in a device's memory; `kind` is of TensorProto. What it holds is undefined."""
    if set_strategy := getattr(state, "set_arena_extend_strategy", None):
        # of values made here; a session's own arena has an option for it
        set_strategy(state.ArenaExtendStrategy.kSameAsRequested)
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), int(kind), device.memory, 0)


def copy_to(target: Any, weight: Bound) -> None:
    """Copy a tensor into an OrtValue, wherever that is; complete when this returns."""
    array = weight.array()
    # as unsigned numbers: onnxruntime does not know every type that numpy does
    target.update_inplace(array.view(f"u{array.dtype.itemsize}"))


@contextmanager
def translated_memory(device: Device) -> Iterator[None]:
    """Errors of taking a device's memory, and of copying there, as ours."""
    try:
        yield
    except _ERRORS as error:
        raise EdgespecError(
            f"{device.label} could not take the weights that were planned for it: "
            f"{_reason(error)}; lower --gpu-memory-budget"
        ) from error


@contextmanager
def translated(stop: StopFlag) -> Iterator[None]:
    """onnxruntime's errors of a run as ours; Cancelled if it was asked to stop."""
    try:
        yield
    except _ERRORS as error:
        if stop.is_set():
            raise Cancelled("the model was asked to stop") from error
        raise EdgespecError(f"onnxruntime failed to compute: {_reason(error)}") from error
    if stop.is_set():
        raise Cancelled("the model was asked to stop")


def _reason(error: BaseException) -> str:
    """onnxruntime's message without its prefix of codes, on one line."""
    text = " ".join(str(error).split())
    return text.rpartition("[ONNXRuntimeError] : ")[2][:400]
