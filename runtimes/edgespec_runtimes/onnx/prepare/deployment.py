"""Deploys a decoder to a device, or to the CPU if the device fails or has no room.

Prepares the decoder for its device and divides the device's memory; loads no weights.
"""

from __future__ import annotations

from collections.abc import Callable

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import raise_if_cancelled
from edgespec.errors import EdgespecError, ModelError
from edgespec.memory.budget import MIB
from edgespec.memory.heap import allocated_bytes
from edgespec.memory.process import round_up_to_step
from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.memory import decoder_needs
from edgespec_runtimes.onnx.memory.placement import GpuNeeds, PieceSize, Placement, place
from edgespec_runtimes.onnx.ort.devices import CPU, Device
from edgespec_runtimes.onnx.ort.sessions import OrtSession
from edgespec_runtimes.onnx.prepare.fitting import FittedDecoder
from edgespec_runtimes.onnx.prepare.providers import ChosenDevice, device_note
from edgespec_runtimes.onnx.weights.paged import PieceWeights


class Deployment(Closeable):
    """Device, cut and placement of a decoder; they may change until it is loaded."""

    def __init__(
        self,
        name: str,
        n_threads: int,
        choice: ChosenDevice,
        fit: Callable[[Device], FittedDecoder],
    ) -> None:
        """`name` is the model's; `fit` prepares it for a device."""
        self.placement = Placement()
        self.max_bytes = 0
        """Most bytes that a session may allocate on the device; 0: no limit."""
        self._name = name
        self._n_threads = n_threads
        self._choice = choice
        self._fit = fit
        self.fitted = fit(choice.device)
        self.sessions: list[OrtSession] = []
        """Sessions without weights, one per graph of the cut."""
        self.sessions_bytes = 0
        """Bytes that these take, nearly the same in every process."""

    @property
    def device(self) -> Device:
        return self._choice.device

    @property
    def batches(self) -> list[decoder_needs.BatchSizes]:
        """Possible batch sizes; on a GPU none that is larger than those that its memory is divided
        for."""
        if not self.placement.uses_gpu:
            return self.fitted.batches
        chosen = self.fitted.sizes
        return [
            sizes
            for sizes in self.fitted.batches
            if sizes.chunk <= chosen.chunk and sizes.max_rows <= chosen.max_rows
        ]

    @property
    def in_memory(self) -> list[PieceWeights]:
        """Weights pinned in or streamed through the process's memory, not kept on a GPU."""
        return [group for i, group in enumerate(self.fitted.groups) if i not in self.placement.kept]

    @property
    def on_gpu(self) -> list[PieceWeights]:
        return [group for i, group in enumerate(self.fitted.groups) if i in self.placement.kept]

    def make_sessions(self) -> None:
        """Create a session per graph of the cut. Raises ModelError if the CPU cannot run it
        either."""
        self.close()
        device, where = self.device if self.device.has_memory else CPU, self.fitted.where
        providers = device.providers(self.max_bytes)
        before_bytes = allocated_bytes()
        try:
            for graph in self.fitted.cut.graphs:
                raise_if_cancelled()
                self.sessions.append(OrtSession(graph, where, self._n_threads, providers))
        except ModelError as error:
            if not self.device.has_memory:
                raise
            self.leave_device(f"{self.device.label} failed ({error})")
            return
        taken_bytes = max(0, allocated_bytes() - before_bytes)
        self.sessions_bytes = round_up_to_step(taken_bytes)
        if any(device.provider not in session.providers for session in self.sessions):
            self.leave_device(f"onnxruntime could not use {self.device.label}")

    def gpu_needs(
        self, source: SourceModel, cache_bytes: int, n_layers: int, can_be_cut: bool
    ) -> GpuNeeds:
        """Needs of the device's memory, as a whole and, if the decoder can be cut, by pieces.

        The KV cache is in the process's memory; a session's inputs from it are copied in each run.
        """
        fitted, sizes, n = self.fitted, self.fitted.sizes, len(self.fitted.cut.graphs)
        unpacked = decoder_needs.unpacked_bytes(fitted.model)
        weights = decoder_needs.device_bytes(list(source.weights.values()))
        whole = decoder_needs.held_bytes(
            self.device, sizes.compute_bytes + cache_bytes + unpacked, 1
        )
        each = -(-cache_bytes // n_layers) + unpacked
        sessions = decoder_needs.held_bytes(self.device, sizes.nbytes + n * each, n)
        pieces = (
            PieceSize(
                fitted.cut.pieces[group.piece].graph, decoder_needs.device_bytes(group.weights)
            )
            for group in (fitted.groups if can_be_cut else ())
        )
        fixed_bytes = fitted.small_bytes + sessions
        return GpuNeeds(weights + whole, fixed_bytes, tuple(pieces), weights, sessions)

    def place(self, gpu_bytes: int, gpu_needs: GpuNeeds) -> None:
        """Place as much as fits into `gpu_bytes`, and limit the allocations of sessions to it."""
        self.placement = place(gpu_bytes, gpu_needs)
        if not self.placement.uses_gpu:
            self.leave_device(
                f"{self._name} needs {-(-gpu_needs.least_bytes // MIB):,} MiB on "
                f"{self.device.label}, {gpu_bytes // MIB:,} are left for it"
            )
        elif self.placement.is_whole:
            self.max_bytes = gpu_needs.whole_bytes
        else:
            self.max_bytes = gpu_needs.session_bytes
            self.make_sessions()

    def leave_device(self, why: str) -> None:
        """Fall back to the CPU for the reason `why`."""
        self._choice = ChosenDevice(CPU, f"{why}: the CPU computes {self._name}")
        self.placement, self.max_bytes = Placement(), 0
        self.close()
        self.fitted = self._fit(CPU)
        self.make_sessions()

    def hear_from(self, whole: OrtSession) -> None:
        """Say if a whole session does not run on the device; raises EdgespecError if its weights
        were planned for a GPU."""
        if self.device.provider in whole.providers:
            return
        if self.device.has_memory:
            raise EdgespecError(
                f"onnxruntime did not load {self._name} onto {self.device.label}, which it could "
                "use before: lower `gpu_memory_budget`, or take `provider=cpu`"
            )
        why = f"onnxruntime could not use {self.device.label}"
        self._choice = ChosenDevice(CPU, f"{why}: the CPU computes {self._name}")

    @property
    def notes(self) -> list[str]:
        """Notes about the chosen device and the reason; empty if there was no choice."""
        notes = [self._choice.note] if self._choice.note else []
        if self.device.is_cpu:
            return notes
        if self.fitted.refuses_masks:
            notes.append(
                f"{self._name}: fused attention takes no tree mask on {self.device.label}; every "
                "branch of a tree is computed by itself"
            )
        n_parts = len(self.fitted.groups)
        return [*notes, device_note(self._name, self.device, self.placement, n_parts)]

    def close(self) -> None:
        while self.sessions:
            self.sessions.pop().close()
