"""Other systems, as far as this one shows them: every module is imported, and commands run, where
Python says that it is on macOS or Windows, without the functions that only Linux or POSIX has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
LINUX_NAMES = {
    "os": (
        *("O_DIRECT", "copy_file_range", "eventfd", "memfd_create", "pipe2", "posix_fadvise"),
        *("posix_fallocate", "sched_getaffinity", "splice"),
    ),
    "mmap": ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MAP_POPULATE"),
    "select": ("epoll",),
    "socket": ("MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_QUICKACK"),
}
POSIX_NAMES = {
    "os": (
        *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "RTLD_LAZY", "RTLD_NOLOAD", "fchmod", "fork"),
        *("geteuid", "getpgid", "getuid", "killpg", "mkfifo", "pread", "preadv", "pwrite"),
        *("readv", "register_at_fork", "set_blocking", "setsid", "sysconf", "uname"),
    ),
    "mmap": ("MADV_DONTNEED", "MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_READ", "PROT_WRITE"),
    "signal": (
        *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "alarm"),
        *("pthread_sigmask", "setitimer"),
    ),
    "socket": ("AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "recv_fds", "send_fds"),
    "time": ("tzset",),
}
PRETEND = """
import ctypes, importlib, json, pkgutil, platform, sys, sysconfig
system, modules, names, others, commands = json.loads(sys.argv[1])
for module in others:  # what others do on such a system is theirs to test
    try:
        importlib.import_module(module)
    except ImportError:
        pass
sysconfig.get_config_vars(), platform.uname()
if system == "win32":  # what Windows has, told by this system's
    import psutil
    info = psutil.Process.memory_info
    psutil.Process.memory_info = lambda self: WindowsMemory(info(self).rss)
    class WindowsMemory:
        def __init__(self, rss):
            self.rss = self.peak_wset = rss
    load = ctypes.CDLL.__init__
    ctypes.CDLL.__init__ = lambda self, name=None, *rest, **more: load(
        self, None if name == "msvcrt" else name, *rest, **more
    )
if system == "darwin":
    import fcntl
    control = fcntl.fcntl
    fcntl.F_NOCACHE = 48
    fcntl.fcntl = lambda file, what, *rest: 0 if what == 48 else control(file, what, *rest)
sys.platform = system
for module in modules:
    sys.modules[module] = None
for module, left_out in names:
    for name in left_out:
        vars(importlib.import_module(module)).pop(name, None)
"""
IMPORTS = """
for package in map(importlib.import_module, ("edgespec", "edgespec_runtimes")):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # of who freezes
            if error.name not in ("PyInstaller",):
                raise
"""
COMMANDS = """
from edgespec.cli.command_line import main
for command in commands:
    if code := main(command):
        sys.exit(f"{command[0]} ended with {code}")
"""
OTHERS = (
    *("asyncio", "concurrent.futures", "ctypes.util", "http.server", "multiprocessing", "numpy"),
    *("numpy.random", "psutil", "pydantic", "subprocess", "tempfile", "urllib.request", "uuid"),
    *("huggingface_hub.hf_api", "jinja2", "llguidance", "onnx", "onnxruntime"),
    "edgespec_runtimes.gguf.llama.bindings",  # llama-cpp-python's declarations
    *("prompt_toolkit", "prompt_toolkit.history", "starlette.applications", "uvicorn"),
)


GENERATE = ("generate", "-m", "target", "-md", "draft", "-p", "class", "-n", "4", "-t", "1")
SYSTEMS = pytest.mark.parametrize(
    ("system", "modules", "names"),
    [("darwin", (), [LINUX_NAMES]), ("win32", POSIX_MODULES, [LINUX_NAMES, POSIX_NAMES])],
    ids=["macOS", "Windows"],
)


def run_as_if_on(
    system: str,
    modules: Sequence[str],
    names: Sequence[dict[str, tuple[str, ...]]],
    code: str,
    commands: Sequence[Sequence[str]] = (),
) -> str:
    """Output of the code. A process that fails fails the test."""
    left_out = [[module, found] for group in names for module, found in group.items()]
    said = json.dumps([system, modules, left_out, OTHERS, commands])
    command = [sys.executable, "-c", PRETEND + code, said]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@SYSTEMS
def test_every_module_is_imported(
    system: str, modules: tuple[str, ...], names: list[dict[str, tuple[str, ...]]]
) -> None:
    run_as_if_on(system, modules, names, IMPORTS)


@pytest.fixture(scope="module")
def text() -> str:
    """Output of `GENERATE` on this system."""
    pytest.importorskip("llama_cpp")
    return run_as_if_on(sys.platform, (), (), COMMANDS, [GENERATE])


@pytest.mark.slow
@SYSTEMS
def test_a_text_is_written_and_the_machine_examined(
    system: str, modules: tuple[str, ...], names: list[dict[str, tuple[str, ...]]], text: str
) -> None:
    printed = run_as_if_on(system, modules, names, COMMANDS, [GENERATE, ["doctor"]])
    assert printed.startswith(text)
    assert "no problems" in printed
    assert "cgroups" not in printed
