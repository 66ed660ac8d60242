"""Models whose paths are not UTF-8."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import edgespec
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings


def test_a_model_whose_path_is_not_utf_8_is_loaded_and_has_a_name(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mod\xe8le.gguf"))
    shutil.copy(embedded_pair().target, path)
    with edgespec.load(LoadSettings(model=path, ctx_size=64)) as session:
        assert len(session.generate("abc", max_tokens=2).tokens) == 2
        session.target.name.encode()
