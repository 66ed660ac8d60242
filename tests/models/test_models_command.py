"""`edgespec models ...` on the embedded pair: what a user and a script get."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.models.embedded import embedded_pair, manifest
from gguf_files import tiny_llama
from zoo_files import write_guessing

pytest.importorskip("llama_cpp")

PAIR = embedded_pair()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "edgespec"
    folder.mkdir()
    return folder


def models(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert command_line.main(["models", *map(str, arguments), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_list_says_what_the_manifest_says(capsys) -> None:
    listed = {model["name"]: model for model in models(capsys, "list")["models"]}
    draft = listed["edgespec-draft"]
    assert draft["parameters"] == manifest().draft.parameters
    assert (draft["format"], draft["quantization"]) == ("gguf", "Q8_0")
    assert draft["size_bytes"] == PAIR.draft.stat().st_size


def test_the_list_describes_cached_models_without_reading_them(capsys, cache_folder: Path) -> None:
    shutil.copy(PAIR.draft, cache_folder / "mine.gguf")
    listed = models(capsys, "list")["models"]
    (cached,) = [model for model in listed if not model["embedded"] and model["files"]]
    assert (cached["name"], cached["quantization"]) == ("mine", "Q8_0")
    assert cached["files"] == [str(cache_folder / "mine.gguf")]


def test_a_damaged_model_in_the_cache_does_not_end_the_list(capsys, cache_folder: Path) -> None:
    (cache_folder / "broken.gguf").write_bytes(b"junk")
    assert command_line.main(["models", "list"]) == 0
    out, err = capsys.readouterr()
    assert "\nbroken " in out
    assert "not a GGUF file" in err


def test_rm_deletes_a_cached_model_with_its_lower_bits_and_nothing_else(
    capsys, cache_folder: Path
) -> None:
    cache_folder.mkdir(parents=True, exist_ok=True)
    for name in "mine.gguf", "mine.lower", "other.gguf":
        (cache_folder / name).write_bytes(b"GGUF")
    assert models(capsys, "rm", "mine")["size_bytes"] == 8
    assert [path.name for path in cache_folder.iterdir()] == ["other.gguf"]
    for name in "mine", "edgespec-target", "../other":
        assert command_line.main(["models", "rm", name]) == 2


def test_show_tells_the_shape(capsys) -> None:
    shown = models(capsys, "show", "target")
    assert shown["parameters"] == manifest().target.parameters
    assert shown["context_length"] == manifest().target.context_length
    assert shown["vocabulary"] == manifest().vocabulary
    assert (shown["architecture"], shown["licence"]) == ("llama", manifest().licence)
    assert {"layers", "embedding_length", "heads", "kv_heads", "size_bytes"} <= shown.keys()


def test_models_of_a_pair_have_the_same_fingerprint_and_others_have_not(
    capsys, tmp_path: Path
) -> None:
    other = tiny_llama().write(tmp_path / "other.gguf")
    target, draft, stranger = (
        models(capsys, "show", name)["vocabulary_fingerprint"]
        for name in ("target", "draft", other)
    )
    assert target == draft != stranger


def test_an_enlarged_model_says_what_it_equals(capsys, tmp_path: Path) -> None:
    out = tmp_path / "big.gguf"
    assert (
        command_line.main(["models", "enlarge", "draft", str(out), "--size", "24MiB", "--quiet"])
        == 0
    )
    assert capsys.readouterr().out.startswith(f"{out}: 24")
    assert models(capsys, "show", out)["equals"] == manifest().draft.name


def test_show_tells_what_guesses_for_whom(capsys, tmp_path) -> None:
    shipped = Path(__file__).parents[2] / "models" / "smollm2" / "smollm2-head-q8_0.gguf"
    assert models(capsys, "show", shipped)["head"]["layers"] == [2, 15, 27]
    assert command_line.main(["models", "show", str(shipped)]) == 0
    said = "guesses for   a target of the same vocabulary, 576 wide: reads the inputs of its layers"
    assert said in capsys.readouterr().out
    guessing = write_guessing(tmp_path / "m.gguf", "glm4moe")
    assert models(capsys, "show", guessing)["own_layers"] == {"layers": 1, "obstacle": None}
    assert command_line.main(["models", "show", str(guessing)]) == 0
    assert "a layer of its own can guess for it (MTP)" in capsys.readouterr().out


def test_help_needs_no_model_library() -> None:
    code = (
        "import sys; from edgespec.cli.command_line import main;"
        "main(['models', 'show', '--help']);"
        "sys.exit(any(name in sys.modules for name in ('llama_cpp', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rm_of_a_link_leaves_what_it_names(capsys, cache_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in "model.onnx", "tokenizer.json":
        (tmp_path / "mine" / name).write_bytes(b"mine")
    (cache_folder / "linked").symlink_to(tmp_path / "mine")
    models(capsys, "rm", "linked")
    assert not [*cache_folder.iterdir()]
    assert len([*(tmp_path / "mine").iterdir()]) == 2


def test_a_link_to_itself_in_the_cache_ends_nothing(capsys, cache_folder: Path) -> None:
    (cache_folder / "loop.gguf").symlink_to("loop.gguf")
    tiny_llama().write(cache_folder.parent / "mine.gguf")
    assert models(capsys, "show", cache_folder.parent / "mine.gguf")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs")
def test_a_fifo_is_not_replaced_by_an_enlarged_model(tmp_path: Path) -> None:
    os.mkfifo(out := tmp_path / "fifo")
    assert command_line.main(["models", "enlarge", "embedded", str(out), "--size", "20MiB"]) == 2
    assert out.is_fifo()
