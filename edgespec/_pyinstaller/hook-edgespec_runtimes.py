"""Adds both runtimes, without PyTorch, which some of their libraries would use."""

from importlib.metadata import PackageNotFoundError

from PyInstaller.utils.hooks import collect_submodules, copy_metadata

hiddenimports = collect_submodules("edgespec_runtimes", on_error="ignore")
excludedimports = ["gguf", "torch", "transformers"]
datas = []
for package in ("llama-cpp-python", "onnxruntime", "onnxruntime-gpu"):
    try:
        datas += copy_metadata(package)  # versions are part of the keys of caches
    except PackageNotFoundError:
        continue
