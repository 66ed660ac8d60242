"""Deploys a decoder to a device, or to the CPU if the device fails or has no room.

Prepares the decoder for its device; loads no weights.
"""

from __future__ import annotations

from collections.abc import Callable

from edgespec.concurrency.owning import Closeable
from edgespec.concurrency.worker import raise_if_cancelled
from edgespec.errors import EdgespecError, ModelError, setting
from edgespec.memory.budget import MIB
from edgespec.memory.heap import allocated_bytes
from edgespec.memory.process import round_up_to_step
from edgespec_runtimes.onnx.memory import decoder_needs
from edgespec_runtimes.onnx.ort.devices import CPU, Device
from edgespec_runtimes.onnx.ort.sessions import OrtSession
from edgespec_runtimes.onnx.prepare.fitting import FittedDecoder
from edgespec_runtimes.onnx.prepare.providers import ChosenDevice


class Deployment(Closeable):
    """Device and cut of a decoder; they may change until it is loaded."""

    def __init__(
        self,
        name: str,
        n_threads: int,
        choice: ChosenDevice,
        fit: Callable[[Device], FittedDecoder],
    ) -> None:
        """`name` is the model's; `fit` prepares it for a device."""
        self.max_bytes = 0
        """Most bytes that a session of everything may allocate on the device; 0 if it was given
        no memory there."""
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
        if not self.max_bytes:
            return self.fitted.batches
        most = self.fitted.sizes.chunk
        return [sizes for sizes in self.fitted.batches if sizes.chunk <= most]

    def make_sessions(self) -> None:
        """Create a session per graph of the cut. Raises ModelError if the CPU cannot run it
        either."""
        self.close()
        where, providers = self.fitted.where, self.device.providers(self.max_bytes)
        before_bytes = allocated_bytes()
        try:
            for graph in self.fitted.cut.graphs:
                raise_if_cancelled()
                self.sessions.append(OrtSession(graph, where, self._n_threads, providers))
        except ModelError as error:
            if self.device.is_cpu:
                raise
            self.leave_device(f"{self.device.label} failed ({error})")
            return
        taken_bytes = max(0, allocated_bytes() - before_bytes)
        self.sessions_bytes = round_up_to_step(taken_bytes)
        if any(self.device.provider not in session.providers for session in self.sessions):
            self.leave_device(f"onnxruntime could not use {self.device.label}")

    def buffer_bytes(self, cache_bytes: int) -> int:
        """Bytes that a session of everything takes on the device besides its weights.

        The KV cache is in the process's memory; a session's inputs from it are copied in each run.
        """
        values = self.fitted.sizes.compute_bytes + cache_bytes
        values += decoder_needs.unpacked_bytes(self.fitted.model)
        return int((1 + decoder_needs.ARENA_SHARE) * values) + self.device.slack_bytes

    def place(self, gpu_bytes: int, needed_bytes: int) -> None:
        """Put everything on the device if it fits into `gpu_bytes`, and limit its session to what
        it needs; otherwise leave it."""
        if needed_bytes <= gpu_bytes:
            self.max_bytes = needed_bytes
            return
        self.leave_device(
            f"{self._name} needs {-(-needed_bytes // MIB):,} MiB on {self.device.label}, "
            f"{gpu_bytes // MIB:,} are left for it"
        )

    def leave_device(self, why: str) -> None:
        """Fall back to the CPU for the reason `why`."""
        self._choice = ChosenDevice(CPU, f"{why}: the CPU computes {self._name}")
        self.max_bytes = 0
        self.close()
        self.fitted = self._fit(CPU)
        self.make_sessions()

    def check(self, whole: OrtSession) -> None:
        """Raise EdgespecError for a session of everything that is not on the device."""
        if self.device.provider not in whole.providers:
            raise EdgespecError(
                f"onnxruntime did not load {self._name} onto {self.device.label}, which it could "
                f"use before: lower {setting.gpu_memory_budget}, or take {setting.provider('cpu')}"
            )

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
        return [*notes, f"{self.device.label} computes {self._name} and has all of its weights"]

    def close(self) -> None:
        while self.sessions:
            self.sessions.pop().close()
