"""Builds one wheel of llama-cpp-python for all processors of an architecture. Linux, GCC.

llama.cpp's code for the CPU becomes a library per level of instructions, of which the best that
the processor knows is loaded; RPC is a library beside them, and so is what CMAKE_ARGS adds:

    python .ci/build_wheel.py --version 0.3.36 --out dist
    python .ci/build_wheel.py --version 0.3.36 --out dist --toolchain .ci/aarch64.cmake

The environment that runs it needs cmake, ninja and wheel. The same sources, compiler and
SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

LEFT_OUT = (
    *("ivybridge", "piledriver", "cannonlake", "icelake", "cooperlake", "sapphirerapids"),
    *("armv8.2_1", "armv8.2_3", "armv9.2_1", "armv9.2_2"),
)
"""Levels whose processors take the next lower one: they differ little; with AMX, the last one of
x86-64, GCC drops the stores of llama.cpp's tile configuration, which ends the process; SME, of the
last two of ARM, is new in GCC 14."""
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "OFF",
    "GGML_BACKEND_DL": "ON",
    "GGML_CPU_ALL_VARIANTS": "ON",
    "GGML_RPC": "ON",
    "CMAKE_PLATFORM_NO_VERSIONED_SONAME": "ON",  # one file a library: wheels have no links
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    **{
        f"LLAMA_BUILD_{part}": "OFF"
        for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")
    },
}
OWN_FOLDER = """Dl_info self;
        if (dladdr((void *) &ggml_backend_load_all, &self)) {
            search_paths.push_back(fs::path(self.dli_fname).parent_path());
        }"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True, help="of llama-cpp-python")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--work", type=Path, default=Path("build/wheels"))
    parser.add_argument("--toolchain", type=Path, help="a CMake file that names a cross compiler")
    parser.add_argument(
        "--jobs", type=int, default=os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", os.cpu_count())
    )
    options = parser.parse_args()
    work = options.work.resolve()
    source = fetch(options.version, work)
    name = options.toolchain.stem if options.toolchain else "native"
    build = compile_libraries(source / "vendor/llama.cpp", work / name, options)
    assemble(source, build, work / f"wheel-{name}", options.out)
    return 0


def fetch(version: str, work: Path) -> Path:
    """The sources of a release, changed where one build serves many processors."""
    folder = work / f"llama_cpp_python-{version}"
    if folder.is_dir():
        return folder
    package = ["--no-deps", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={version}"]
    run(sys.executable, "-m", "pip", "download", "-d", str(work), *package)
    archive = work / f"{folder.name}.tar.gz"
    with tarfile.open(archive) as opened:
        opened.extractall(work / "unpacked", filter="data")
    backends = work / "unpacked" / folder.name / "vendor/llama.cpp/ggml/src"
    for level in LEFT_OUT:
        change(backends / "CMakeLists.txt", rf"ggml_add_cpu_backend_variant\({level} .*\)", "")
    # beside itself, not beside the interpreter or in the current folder
    registry = backends / "ggml-backend-reg.cpp"
    change(registry, r"search_paths.push_back\(get_executable_path\(\)\);", OWN_FOLDER)
    change(registry, r"search_paths.push_back\(cwd\);", "")
    (work / "unpacked" / folder.name).rename(folder)
    return folder


def change(path: Path, pattern: str, replacement: str) -> None:
    text, n = re.subn(pattern, lambda _: replacement, path.read_text(encoding="utf-8"))
    if not n:
        raise SystemExit(f"{path} has nothing like {pattern}: this version differs")
    path.write_text(text, encoding="utf-8")


def compile_libraries(source: Path, build: Path, options: argparse.Namespace) -> Path:
    """The folder of the libraries."""
    # paths in messages are relative, and libraries that were only looked at can be unloaded again
    flags = f"-ffile-prefix-map={source}=."
    settings = OPTIONS | {"CMAKE_C_FLAGS": flags, "CMAKE_CXX_FLAGS": f"{flags} -fno-gnu-unique"}
    if options.toolchain:
        settings["CMAKE_TOOLCHAIN_FILE"] = str(options.toolchain.resolve())
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    added = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    run("cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *defined, *added)
    run("cmake", "--build", str(build), "--target", "llama", "-j", str(options.jobs))
    return build / "bin"


def assemble(source: Path, libraries: Path, work: Path, out: Path) -> None:
    """Put the libraries, what they need and all licences into a wheel of the Python part."""
    shutil.rmtree(work, ignore_errors=True)
    python_part = ["-C", "cmake.define.LLAMA_BUILD=OFF", "-C", "cmake.define.LLAVA_BUILD=OFF"]
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--no-cache-dir", "--no-deps"]
    run(*pip_wheel, "-w", str(work), *python_part, str(source))
    (plain,) = work.glob("*.whl")
    run(sys.executable, "-m", "wheel", "unpack", "-d", str(work), str(plain))
    (root,) = (path for path in work.iterdir() if path.is_dir())
    folder = root / "llama_cpp/lib"
    folder.mkdir(exist_ok=True)
    strip = cached(libraries.parent, "CMAKE_STRIP")
    for library in [*sorted(libraries.glob("lib*.so")), openmp(libraries.parent)]:
        shutil.copy(library, folder / library.name)
        run(strip, "--strip-unneeded", str(folder / library.name))
    (information,) = root.glob("*.dist-info")
    licences = information / "licenses"
    for path in licence_files(source):
        shutil.copy(path, licences / f"{path.parent.name}-{path.name}")
    described = information / "WHEEL"
    tag = f"Tag: py3-none-{platform_tag(libraries)}"
    described.write_text(re.sub("Tag: .*", tag, described.read_text(encoding="utf-8")))
    out.mkdir(parents=True, exist_ok=True)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    run(sys.executable, "-m", "wheel", "pack", "-d", str(out), str(root))


def licence_files(source: Path) -> list[Path]:
    """Licences of what is compiled in: llama.cpp, and the OpenMP library of GCC."""
    found = [*(source / "vendor/llama.cpp").glob("LICENSE*")]
    found += (source / "vendor/llama.cpp/licenses").glob("LICENSE*")
    return [*found, *Path("/usr/share/doc").glob("libgomp1/copyright")]


def openmp(build: Path) -> Path:
    """GCC's OpenMP library, which few systems have without a compiler."""
    asked = [compiler(build), "-print-file-name=libgomp.so.1"]
    return Path(subprocess.run(asked, check=True, text=True, stdout=subprocess.PIPE).stdout.strip())


def compiler(build: Path) -> str:
    """The C compiler. The cache lacks one that a toolchain file names."""
    (described,) = build.glob("CMakeFiles/*/CMakeCCompiler.cmake")
    found = re.search(
        r'^set\(CMAKE_C_COMPILER "(.*)"\)$', described.read_text("utf-8"), re.MULTILINE
    )
    assert found is not None
    return found[1]


def cached(build: Path, name: str) -> str:
    """A tool that CMake found."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE)
    assert found is not None
    return found[1]


def platform_tag(libraries: Path) -> str:
    """The oldest glibc that has all functions that the libraries call, and the architecture."""
    content = b"".join(path.read_bytes() for path in libraries.glob("lib*.so"))
    minor = max(int(number) for number in re.findall(rb"GLIBC_2\.(\d+)", content))
    machine = {0x3E: "x86_64", 0xB7: "aarch64"}[content[18]]
    return f"manylinux_2_{minor}_{machine}"


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
