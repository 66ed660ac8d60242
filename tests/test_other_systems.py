"""What of other systems can be seen on this one: every module is imported where Python says that it
runs on macOS or Windows, without the functions that only Linux, or only POSIX, has."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
LINUX_NAMES = {
    "os": ("O_DIRECT", "posix_fadvise", "sched_getaffinity"),
    "mmap": ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE"),
}
POSIX_NAMES = {
    "os": ("fork", "getuid", "geteuid", "killpg", "mkfifo", "preadv", "RTLD_NOLOAD", "sysconf"),
    "mmap": ("MADV_DONTNEED", "MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_READ", "PROT_WRITE"),
    "signal": ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "pthread_sigmask"),
}
IMPORTS = """
import importlib, json, pkgutil, sys, sysconfig
system, modules, names, others = json.loads(sys.argv[1])
for module in others:  # what others do on such a system is theirs to test
    try:
        importlib.import_module(module)
    except ImportError:
        pass
sysconfig.get_config_vars()
sys.platform = system
for module in modules:
    sys.modules[module] = None
for module, left_out in names:
    for name in left_out:
        vars(importlib.import_module(module)).pop(name, None)
for package in map(importlib.import_module, ("edgespec", "edgespec_runtimes")):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # of the extra `adapt`
            if error.name not in ("torch", "transformers"):
                raise
"""
OTHERS = (
    *("asyncio", "concurrent.futures", "ctypes.util", "http.server", "multiprocessing", "numpy"),
    *("numpy.random", "psutil", "pydantic", "subprocess", "tempfile", "urllib.request", "uuid"),
    *("huggingface_hub.hf_api", "jinja2", "llama_cpp", "llguidance", "onnx", "onnxruntime"),
    *("prompt_toolkit", "prompt_toolkit.history", "shtab", "starlette.applications", "uvicorn"),
)


@pytest.mark.parametrize(
    ("system", "modules", "names"),
    [
        ("darwin", (), [LINUX_NAMES]),
        ("win32", POSIX_MODULES, [LINUX_NAMES, POSIX_NAMES]),
    ],
    ids=["macOS", "Windows"],
)
def test_every_module_is_imported(
    system: str, modules: tuple[str, ...], names: list[dict[str, tuple[str, ...]]]
) -> None:
    left_out = [[module, found] for group in names for module, found in group.items()]
    said = json.dumps([system, modules, left_out, OTHERS])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, said], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
