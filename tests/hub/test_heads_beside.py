"""A head that stands beside the model of -hf or -m FOLDER guesses for it; repositories are named
and filled as real ones are."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import edgespec
from edgespec.cli.fetching import heads_in
from edgespec.cli.invocation import CommandSettings, settings_from
from edgespec.files import gguf_names
from edgespec.hub import fetch
from hub_server import FakeHub, serving

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")

from edgespec_runtimes.gguf.entry import GgufRuntime
from gguf_files import STRING, Gguf, tiny_dflash, tiny_eagle3, tiny_llama
from zoo_files import write_apart

GPT_OSS, GEMMA, QWEN = "ggml-org/gpt-oss-20b-GGUF", "ggml-org/gemma-4-26B-A4B-it-GGUF", "u/Qwen3-8B"
MODEL, EAGLE3, DFLASH = tiny_llama(layers=4), tiny_eagle3(), tiny_dflash()
ASSISTANT = Gguf({"general.architecture": (STRING, "gemma4-assistant")})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    folder = tmp_path_factory.mktemp("files")

    def content(model: Gguf) -> bytes:
        return model.write(folder / "one.gguf").read_bytes()

    model, assistant = content(MODEL), content(ASSISTANT)
    repos = {
        GPT_OSS: {
            "gpt-oss-20b-MXFP4.gguf": model,
            "eagle3-gpt-oss-20b-BF16.gguf": content(EAGLE3) + bytes(64),
            "eagle3-gpt-oss-20b-Q8_0.gguf": content(EAGLE3),
        },
        GEMMA: {
            "gemma-4-26B-A4B-it-Q4_0.gguf": model,
            "mmproj-gemma-4-26B-A4B-it-Q8_0.gguf": b"GGUF",
            "mtp-gemma-4-26B-A4B-it-Q4_0.gguf": assistant,
            "dflash-gemma-4-26B-A4B-it-Q8_0.gguf": content(DFLASH),
            "eagle3-gemma-4-26B-A4B-it-Q8_0.gguf": content(EAGLE3),
        },
        "unsloth/gemma-4-26B-A4B-it-qat-GGUF": {
            "gemma-4-26B-A4B-it-qat-UD-Q4_K_XL.gguf": model,
            "mtp-gemma-4-26B-A4B-it.gguf": assistant,
            "MTP/mtp-gemma-4-26B-A4B-it-Q8_0.gguf": assistant,
            "MTP/gemma-4-26B-A4B-it-Q4_0-MTP.gguf": assistant,
        },
        QWEN: {
            "Qwen3-8B-Q4_K_M.gguf": model,
            "dflash-Qwen3-8B-Q8_0.gguf": content(tiny_dflash(embedding=32)),
            "eagle3-Qwen3-8B-Q8_0.gguf": content(tiny_eagle3(target_embedding=128)),
        },
    }
    with serving(FakeHub(repos)) as running:
        yield running


@pytest.fixture(autouse=True)
def _the_hub_of_commands(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.ranges.clear()
    local = partial(fetch.Hub, hub.endpoint, tmp_path / "hub", token=None, offline=False)
    monkeypatch.setattr(fetch, "Hub", local)


def command(**given: str | bool) -> CommandSettings:
    return settings_from(argparse.Namespace(quiet=True, memory_budget="1GiB", **given))


def test_the_smallest_eagle3_head_is_fetched_after_the_model(hub: FakeHub) -> None:
    found = command(hf_repo=GPT_OSS)
    assert found.load.draft is not None and found.load.optional_draft
    assert found.load.draft.name == "eagle3-gpt-oss-20b-Q8_0.gguf"
    assert found.load.draft.parent == found.load.model.parent
    assert found.notes[-1].startswith("eagle3-gpt-oss-20b-Q8_0 guesses for gpt-oss-20b-MXFP4")
    assert len(hub.ranges) == 2
    assert edgespec.plan(found.load).has_draft


def test_dflash_comes_before_eagle3_and_what_is_not_run_is_not_fetched(hub: FakeHub) -> None:
    found = command(hf_repo=GEMMA)
    assert found.load.draft is not None
    assert found.load.draft.name == "dflash-gemma-4-26B-A4B-it-Q8_0.gguf"
    assert len(hub.ranges) == 2


def test_without_a_head_that_is_run_one_line_says_why(hub: FakeHub) -> None:
    found = command(hf_repo="unsloth/gemma-4-26B-A4B-it-qat-GGUF")
    assert found.load.draft is None
    assert found.notes[-1].startswith("no head beside gemma-4-26B-A4B-it-qat-UD-Q4_K_XL.gguf is")
    assert "mtp-gemma-4-26B-A4B-it.gguf (assistant heads are not run)" in found.notes[-1]
    assert len(hub.ranges) == 1


def test_heads_of_another_size_are_left_with_the_sizes() -> None:
    found = command(hf_repo=QWEN)
    assert found.load.draft is None
    assert "(it reads states of 32 values, and the model has 64)" in found.notes[-1]
    assert "(it reads states of 128 values, and the model has 64)" in found.notes[-1]


def test_a_head_of_another_vocabulary_is_left_out_when_the_plan_is_made(tmp_path: Path) -> None:
    MODEL.write(tmp_path / "model.gguf")
    other = tiny_eagle3(n_draft_vocab=None)
    names = other.metadata["tokenizer.ggml.tokens"]
    other.metadata["tokenizer.ggml.tokens"] = (*names[:2], [*names[2][:-1], "another"])
    other.write(tmp_path / "eagle3-model.gguf")
    found = command(model=str(tmp_path))
    assert found.load.draft == tmp_path / "eagle3-model.gguf"
    plan = edgespec.plan(found.load)
    assert not plan.has_draft
    assert any("eagle3-model does not guess for model.gguf" in note for note in plan.notes)


def test_a_layer_in_the_model_s_own_file_comes_first(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GgufRuntime, "guesses_itself", lambda self, path: True)
    found = command(hf_repo=GPT_OSS)
    assert found.load.draft == found.load.model
    assert len(hub.ranges) == 1


def test_a_layer_in_a_file_of_its_own_comes_before_other_heads(tmp_path: Path) -> None:
    model, layer = write_apart(tmp_path / "Qwen3.6-27B-Q4_K_M.gguf", "qwen35")
    tiny_eagle3(target_embedding=256).write(tmp_path / "eagle3-Qwen3.6-27B.gguf")
    found = command(model=str(tmp_path))
    assert (found.load.model, found.load.draft) == (model, layer)
    assert found.notes[-1].startswith("mtp-Qwen3.6-27B-Q4_K_M guesses for Qwen3.6-27B-Q4_K_M")
    assert edgespec.plan(found.load).has_draft


@pytest.mark.slow
def test_a_command_says_what_guesses_and_writes_what_it_writes_without(
    hub: FakeHub, tmp_path: Path
) -> None:
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        words = ("generate", "-p", "the other one", "-n", "12", "-hf", GPT_OSS, *flags)
        env = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "edgespec", *words, "--memory-budget", "1GiB"]
        return subprocess.run(command, check=False, env=env, capture_output=True, text=True)

    guessed, alone = run(), run("--no-draft")
    assert guessed.returncode == alone.returncode == 0, guessed.stderr
    assert guessed.stdout == alone.stdout
    assert "eagle3-gpt-oss-20b-Q8_0 guesses for gpt-oss-20b-MXFP4 where" in guessed.stderr
    assert "eagle3" not in alone.stderr


@pytest.mark.parametrize("more", [{"no_draft": True}, {"draft": "smollm2-head"}])
def test_who_wants_none_or_another_fetches_none(hub: FakeHub, more: dict) -> None:
    found = command(hf_repo=GPT_OSS, **more)
    assert found.load.draft is None or "eagle3" not in found.load.draft.name
    assert len(hub.ranges) == 1


def test_a_head_that_does_not_come_leaves_the_model_alone(hub: FakeHub) -> None:
    command(hf_repo=GPT_OSS, no_draft=True)
    hub.refusals = [404]
    found = command(hf_repo=GPT_OSS)
    assert found.load.draft is not None and "BF16" in found.load.draft.name
    hub.refusals = []


def test_a_folder_s_head_is_taken_where_files_are(tmp_path: Path) -> None:
    MODEL.write(tmp_path / "gpt-oss-20b-MXFP4.gguf")
    EAGLE3.write(tmp_path / "eagle3-gpt-oss-20b-Q8_0.gguf")
    found = command(model=str(tmp_path))
    assert found.load.draft == tmp_path / "eagle3-gpt-oss-20b-Q8_0.gguf"
    assert command(model=str(found.load.model)).load.draft == found.load.draft
    text = "the other one"
    with edgespec.load(found.load) as session:
        assert session.draft is not None
        written = session.generate(text, max_tokens=8).tokens
    with edgespec.load(found.load.without_draft()) as session:
        assert session.generate(text, max_tokens=8).tokens == written


def test_a_head_of_half_of_the_budget_is_not_fetched(hub: FakeHub) -> None:
    given = argparse.Namespace(quiet=True, memory_budget="200KiB", hf_repo=GPT_OSS)
    found = settings_from(given)
    assert found.load.draft is None
    assert "KiB, more than half of the memory budget)" in found.notes[-1]
    assert len(hub.ranges) == 1


def test_heads_beside_several_models_are_of_none_of_them(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        MODEL.write(tmp_path / name)
    EAGLE3.write(tmp_path / "eagle3-a.gguf")
    found = command(model=str(tmp_path / "a.gguf"))
    assert found.load.draft is None and not found.notes


def test_a_name_that_is_too_long_is_no_folder() -> None:
    assert heads_in("m" * 5000) == heads_in(None) == {}


def test_the_order_of_heads() -> None:
    sizes = dict.fromkeys(("mtp-m.gguf", "eagle3-m-Q8_0.gguf", "dflash2-m.gguf", "m.gguf"), 9)
    sizes |= {"eagle3-m-Q4_0.gguf": 5, "dspark-m.gguf": 1, "MTP/gemma-4-Q8_0-MTP.gguf": 1}
    eagles = ["eagle3-m-Q4_0.gguf", "eagle3-m-Q8_0.gguf"]
    order = ["mtp-m.gguf", "dflash2-m.gguf", *eagles, "dspark-m.gguf", "MTP/gemma-4-Q8_0-MTP.gguf"]
    assert gguf_names.heads(sizes) == order
