"""Options of ONNX models; imports no onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from pydantic import Field

from edgespec.errors import UsageError, setting
from edgespec.settings.options import Flag, Role, RuntimeOptions

if TYPE_CHECKING:
    from edgespec.settings.config import LoadSettings

Provider = Literal["auto", "cpu", "cuda"]


class OnnxOptions(RuntimeOptions):
    """Options for computing with onnxruntime."""

    kind: ClassVar[str] = "an ONNX model"
    roles: ClassVar[Mapping[str, Role]] = {"accuracy_level": "target"}

    provider: Annotated[
        Provider,
        Flag(
            "what computes ONNX models; CUDA was run on one card "
            "(default: auto, which is cuda where it can be used, else cpu)",
            f"{{{','.join(get_args(Provider))}}}",
        ),
    ] = "auto"

    accuracy_level: Annotated[int, Field(ge=0, le=4)] | None = None
    """Accuracy of the target's 4-bit products (MatMulNBits): 1 computes with floats, 4 rounds
    activations to eight bits, which is faster. Default: what the file says."""

    def check(self, load: LoadSettings) -> None:
        if load.gpu_memory_budget is not None and self.provider == "cpu":
            raise UsageError(
                f"{setting.gpu_memory_budget} has no effect with {setting.provider('cpu')}, which "
                "computes in the process's memory: leave one of them out"
            )
