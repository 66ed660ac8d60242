"""The command line as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from edgespec.cli.flags.parser import COMMANDS


@pytest.mark.parametrize(
    ("words", "unused"),
    [(["generate", "--help"], {"llama_cpp", "numpy"}), (["--help"], {"pydantic"})],
)
def test_help_and_version_import_little(words: list[str], unused: set[str]):
    """Importing pydantic was three quarters of the time that `--version` took."""
    code = (
        f"import sys; from edgespec.cli.command_line import main; main({words});"
        f"main(['--version']); sys.exit(bool({unused} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NOT_FOR_A_TEXT = (
    *("batch", "bench", "completions", "diagnosis", "hub", "jobs", "server"),
    *(f"cli.commands.{name.replace('-', '_')}" for name in COMMANDS if name != "generate"),
    *("engine.sources.head_source",),
    *("paging.expert_cache", "tracing.trace_file"),
)
"""Parts of `edgespec` that a plain text has no use for: each would count in every budget."""
NOT_FOR_A_GGUF_TEXT = ("baselines", "head", "lending", "prepared_head", "remote")


@pytest.mark.slow
def test_a_text_imports_what_it_uses():
    """A few dozen modules more are a MiB of every budget."""
    code = (
        "import sys; from edgespec.__main__ import main; sys.argv[0] = 'edgespec'; main();"
        "print(*sys.modules, file=sys.stderr)"
    )
    words = ["generate", "-p", "x", "-n", "1", "-c", "64", "--quiet"]
    command = [sys.executable, "-c", code, *words]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    unused = {
        "_hashlib",
        *(f"edgespec.{name}" for name in NOT_FOR_A_TEXT),
        *(f"edgespec_runtimes.gguf.{name}" for name in NOT_FOR_A_GGUF_TEXT),
        "edgespec_runtimes.onnx.entry",
    }
    loaded = set(run.stderr.split())
    assert all(map(find_spec, unused))
    assert "edgespec_runtimes.gguf.prepared" in loaded
    assert not unused & loaded


def test_help_may_be_cut_short():
    """The interpreter's own flush at exit complains when nobody prevents it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "edgespec", "generate", "--help"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.run(
        command, env=environ, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (run.returncode, run.stderr) == (1, b"")


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&- 2>&-", 1)])
def test_only_a_result_that_goes_nowhere_is_an_error(closed: str, code: int):
    command = f"{sys.executable} -m edgespec --version {closed}"
    assert subprocess.run(command, shell=True, check=False).returncode == code


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_ends_a_generation_with_what_there_is(number: signal.Signals):
    pytest.importorskip("llama_cpp")
    command = [sys.executable, "-m", "edgespec", "generate", "-p", "def gcd(a, b):", "-n", "-1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background ignores Ctrl-C, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        text = process.stdout.read(1)
        process.send_signal(number)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert text + rest
    lines = err.decode().splitlines()
    assert lines[-1] == "edgespec: error: interrupted"
    assert any(line.endswith("ended by cancelled") for line in lines)
