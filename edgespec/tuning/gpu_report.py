"""Says what tuning found out about GPUs: lines for people, entries for programs.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgespec.tuning.measuring import Measured
from edgespec.tuning.search import Tuned
from edgespec.units import format_rate, format_size


def copy_lines(measured: Measured) -> list[str]:
    """The GPU of each runtime, and how fast it is reached."""
    by_runtime = {gpu.runtime: gpu for gpu in measured.gpus}
    return [
        f"GPU of the runtime {runtime}: {gpu.gpu}; {format_rate(gpu.bytes_per_s)} with copies of "
        f"{format_size(gpu.copy_bytes)} to it"
        for runtime, gpu in by_runtime.items()
    ]


def entries(tuned: Tuned) -> dict[str, Any]:
    measured = tuned.measured
    return {
        "gpus": [asdict(gpu) | {"model": str(gpu.model)} for gpu in measured.gpus],
        "drafts_on_gpu": [
            {
                "draft": str(draft),
                "options": dict(offload.given),
                "trees": [asdict(tree) for tree in replayed.trees],
            }
            for draft, offload, replayed in measured.offloaded
        ],
        "gpu_shares": [asdict(share) for share in tuned.gpu_shares],
    }
