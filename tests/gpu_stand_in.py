"""An RPC server's device in a GPU's place, as a program of its own: instead of `gguf.trials`."""

from __future__ import annotations

import sys

import pytest

from edgespec_runtimes.gguf import trials
from rpc_servers import use_as_gpu


def trial(server: str) -> list[str]:
    """The command that runs it."""
    return [sys.executable, __file__, server]


if __name__ == "__main__":
    use_as_gpu(pytest.MonkeyPatch(), sys.argv[1])
    sys.exit(trials.try_gpus())
