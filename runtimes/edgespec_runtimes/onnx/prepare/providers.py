"""Chooses the onnxruntime execution provider for a model."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import UsageError, setting
from edgespec_runtimes.onnx.ort.devices import (
    CPU,
    CUDA_PROVIDER,
    Device,
    find_cuda,
    is_listed,
    nvidia_driver,
)


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The device chosen for a model."""

    device: Device
    note: str | None = None
    """Note for the user why a better device of this onnxruntime build is not used."""


def choose(provider: str) -> ChosenDevice:
    """The device for `--provider`; `auto` is CUDA if it can be used, otherwise the CPU.

    Where there is no NVIDIA driver, nobody expects CUDA, and nothing is said about it.
    Raises UsageError for a requested provider that cannot be used.
    """
    if provider == "cpu" or (provider == "auto" and not is_listed(CUDA_PROVIDER)):
        return ChosenDevice(CPU)
    found = find_cuda()
    if isinstance(found, Device):
        return ChosenDevice(found)
    if provider == "auto":
        if nvidia_driver() is None:
            return ChosenDevice(CPU)
        return ChosenDevice(CPU, f"onnxruntime computes on the CPU; cuda cannot be used: {found}")
    raise UsageError(
        f"{setting.provider(provider)} cannot be used: {found}; {setting.provider('auto')} can"
    )
