"""`edgespec models draft` refuses what it would overwrite."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.models.embedded import embedded_pair


@pytest.mark.slow
def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    assert (
        command_line.main(["models", "draft", str(embedded_pair().target), str(out), "--quiet"])
        == 2
    )
    assert "name another file" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
