"""Writes the files of the models that ship, their manifest, and files that only checks need.
Reads checkpoints; trains nothing. ONNX is exported by another interpreter (the extra `export`)."""

from __future__ import annotations

import hashlib
import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open

import shapes
from to_gguf import LICENCE, convert

MIXTURE = "mixture"
EXPORTER = Path(__file__).with_name("to_onnx.py")


def release(
    checkpoints: Mapping[str, Path],
    tokenizer: Path,
    out: Path,
    work: Path,
    export_python: Path | None,
) -> None:
    """Write the shipped files to `out` (GGUF Q8_0, ONNX fp16, `embedded.toml`), and those that
    compare.py checks to `work` (GGUF F16, ONNX fp32). The keys of `checkpoints` are the roles
    target and draft."""
    for checkpoint in checkpoints.values():
        name = checkpoint.name
        for kind, folder in (("Q8_0", out), ("F16", work)):
            file = folder / f"{name}-{kind.lower()}.gguf"
            convert(checkpoint, tokenizer, file, name=name, kind=kind)
        if export_python is not None:
            for dtype, folder in (("fp16", out), ("fp32", work)):
                command = [export_python, EXPORTER, checkpoint, folder / f"{name}-onnx-{dtype}"]
                command += ["--dtype", dtype, "--tokenizer", tokenizer]
                subprocess.run(command, check=True)
    (out / "embedded.toml").write_text("\n".join(manifest(checkpoints, out)) + "\n")


def release_mixture(checkpoint: Path, tokenizer: Path, out: Path) -> None:
    """Write the mixture to `out` as GGUF Q8_0, and its entry at the end of `embedded.toml`."""
    file = out / f"{checkpoint.name}-q8_0.gguf"
    convert(checkpoint, tokenizer, file, name=checkpoint.name, kind="Q8_0")
    described = (out / "embedded.toml").read_text()
    others = described.partition(f"\n[{MIXTURE}]\n")[0].rstrip("\n")
    lines = described_model(MIXTURE, checkpoint.name, parameters(checkpoint), out)
    (out / "embedded.toml").write_text("\n".join([others, *lines]) + "\n")


def manifest(checkpoints: Mapping[str, Path], out: Path) -> Iterator[str]:
    """Lines of TOML about both models, with all their files in `out`."""
    yield from (f'licence = "{LICENCE}"', f"vocabulary = {shapes.N_VOCAB}")
    for role, checkpoint in checkpoints.items():
        yield from described_model(role, checkpoint.name, parameters(checkpoint), out)


def described_model(role: str, name: str, n_parameters: int, out: Path) -> Iterator[str]:
    yield from ("", f"[{role}]", f'name = "{name}"')
    yield f"parameters = {n_parameters}"
    yield f"context_length = {shapes.N_CONTEXT}"
    for file in sorted(out.glob(f"{name}-*.gguf")):
        yield from entry(role, file, out, "gguf", file.stem.removeprefix(f"{name}-").upper())
    for folder in sorted(out.glob(f"{name}-onnx-*")):
        dtype = folder.name.removeprefix(f"{name}-onnx-")
        for file in sorted(folder.iterdir()):
            yield from entry(role, file, out, "onnx", dtype.replace("fp", "F"))


def parameters(checkpoint: Path) -> int:
    """Number of weights; the tied embedding counts once."""
    with safe_open(checkpoint / "model.safetensors", framework="pt") as tensors:
        names = tensors.keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def entry(role: str, file: Path, out: Path, format_name: str, quantization: str) -> Iterator[str]:
    data = file.read_bytes()
    yield from (
        "",
        f"[[{role}.files]]",
        f'file = "{file.relative_to(out).as_posix()}"',
        f'format = "{format_name}"',
        f'quantization = "{quantization}"',
        f'sha256 = "{hashlib.sha256(data).hexdigest()}"',
        f"size_bytes = {len(data)}",
    )
