"""A program of its own: asks devices for their memory, the local GPUs or those of an RPC server.

It may crash, hang or take memory instead of the process that plans. Writes JSON to stdout: the
bytes that a process like this one takes, and the devices.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

N_QUESTIONS = 3


def main(servers: Sequence[str]) -> int:
    """Exit code 0 if every device answered."""
    os.environ["GGML_NO_BACKTRACE"] = "1"  # read by the library, which would start a debugger
    from edgespec.memory import process
    from edgespec_runtimes.gguf import isolated  # noqa: F401 - which the process will be
    from edgespec_runtimes.gguf.llama import ggml, gpu, rpc

    found = [d for server in servers for d in rpc.devices_of(server)] if servers else gpu.find_all()
    with ExitStack() as owned:
        if servers:  # a backend keeps the connection; without one every question makes its own
            for device in found:
                ggml.new_backend(owned, device)
        answers = [(ggml.device_name(d), *ggml.memory_of(d), _round_trip_s(d)) for d in found]
        os.write(1, json.dumps([process.taken_bytes(), answers]).encode())
    return 0


def _round_trip_s(device: int) -> float:
    """Seconds of the quickest of some questions."""
    from edgespec_runtimes.gguf.llama import ggml

    seconds = []
    for _ in range(N_QUESTIONS):
        began = time.perf_counter()
        ggml.memory_of(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
