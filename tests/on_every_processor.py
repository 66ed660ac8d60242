"""Runs the tests of what is claimed to the last bit on every level of instructions that this
processor has: with each of the libraries for CPUs that a wheel of llama-cpp-python holds.

    python tests/on_every_processor.py dist/llama_cpp_python-*.whl
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED = (
    *("abi", "branches", "packing_allowed", "gguf_experts", "gguf_lines", "gguf_mixture"),
    *("gguf_recurrent", "gguf_types", "invariant_products", "packed_weights"),
    *("reference_kernels", "rounding_notes", "same_request", "sliced_heads", "zoo"),
)
TESTS = [*(f"tests/gguf_runtime/test_{name}.py" for name in TESTED), "tests/test_golden_texts.py"]
PATIENCE = ("-o", "faulthandler_timeout=3600")
"""The species of the zoo are one fixture, which takes long without AVX or on a busy machine."""
START = "from edgespec_runtimes.gguf.llama import loading; loading.start(); print(loading.build())"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--level", action="append", help="only this one; may be repeated")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/processors")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files, instead of all")
    options = parser.parse_args()
    failed = 0
    print("| level | extensions | tests | seconds |\n| --- | --- | --- | --- |", flush=True)
    for level in unpack(options.wheel, options.folder):
        if options.level and level not in options.level:
            continue
        environ = os.environ | {"LLAMA_CPP_LIB_PATH": str(options.folder / level)}
        started = subprocess.run(
            [sys.executable, "-c", START], env=environ, check=False, capture_output=True, text=True
        )
        if "no library for this processor" in started.stderr:
            print(f"| {level} | not had by this processor | not tried | |", flush=True)
            continue
        begin, log = time.monotonic(), options.folder / f"{level}.log"
        with log.open("w", encoding="utf-8") as file:
            command = [sys.executable, "-m", "pytest", "-q", *PATIENCE, *options.tests]
            done = subprocess.run(
                command, cwd=ROOT, env=environ, check=False, stdout=file, stderr=subprocess.STDOUT
            )
        failed += done.returncode != 0
        counts = counted(log.read_text("utf-8")) or f"exit code {done.returncode}, see {log}"
        extensions = " ".join(started.stdout.split()[1:])
        seconds = time.monotonic() - begin
        print(f"| {level} | {extensions} | {counts} | {seconds:.0f} |", flush=True)
    return 1 if failed else 0


def counted(output: str) -> str:
    """Pytest's counts, such as "3 passed, 1 skipped"; nothing of a run that ended early."""
    found = re.findall(r"^(\d+ [a-z]+\b.*) in [\d.]+s", output, re.MULTILINE)
    return found[-1] if found else ""


def unpack(wheel: Path, folder: Path) -> list[str]:
    """A folder of libraries for each level, which holds none of the others."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [Path(name) for name in archive.namelist() if "/lib/" in name]
        levels = {p.stem.removeprefix("libggml-cpu-"): p for p in libraries if "-cpu-" in p.stem}
        for level, own in levels.items():
            (folder / level).mkdir(parents=True, exist_ok=True)
            for library in libraries:
                if library == own or library not in levels.values():
                    path = folder / level / library.name
                    path.unlink(missing_ok=True)  # a run beside this one may have it mapped
                    path.write_bytes(archive.read(str(library)))
    return [*levels]


if __name__ == "__main__":
    sys.exit(main())
