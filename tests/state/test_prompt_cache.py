"""`--prompt-cache DIR`: what one process has read, the next need not read."""

from __future__ import annotations

from pathlib import Path

from commands_here import run_here
from edgespec.files.sampled import sampled_digest

PROMPT = "def f(x):\n    return x + 1\n" * 24


def test_generate_reads_a_prompt_once(tmp_path: Path) -> None:
    ask = ("generate", "-p", PROMPT, "-n", 12, "-b", 64, "--prompt-cache", tmp_path, "--json")
    first, second = (run_here(*ask).json for _ in range(2))
    assert second["text"] == first["text"]
    assert first["reused_tokens"] == 0 < second["reused_tokens"]


def test_a_changed_model_file_has_other_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(8 << 20))
    before = sampled_digest([path])
    path.write_bytes(bytes(8 << 20) + b"x")
    assert sampled_digest([path]) != before
