"""`edgespec generate` on a session of known words: streams, JSON, and what reaches the session."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.engine.settings import EngineSettings
from edgespec.errors import TargetLost
from edgespec.rules.sampling import SamplingParams
from edgespec_runtimes.gguf.options import GgufOptions
from fake_session import MIB, FakeSession


def test_the_text_and_nothing_else_goes_to_stdout(fake: FakeSession, capsys):
    assert command_line.main(["generate", "-p", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "one two"
    assert "3 tokens, the first after 0.20 s, 2.0 tokens/s; ended by" in err
    assert "1 of 3 verified guesses accepted" in err
    assert "a note" in err
    assert fake.is_closed


def test_json_in_a_file_leaves_the_text_on_stdout(fake: FakeSession, tmp_path: Path, capsys):
    file = tmp_path / "report.json"
    assert command_line.main(["generate", "-p", "hi", "--json", str(file)]) == 0
    assert capsys.readouterr().out == json.loads(file.read_text())["text"]
    assert command_line.main(["generate", "-p", "hi", "--json", str(tmp_path)]) == 2


def test_json_keeps_the_text_before_a_failure(fake: FakeSession, capsys):
    fake.fails = TargetLost("the server was lost")
    assert command_line.main(["generate", "-p", "hi", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["text"] == "one two"
    assert report["error"]["type"] == "TargetLost"


def test_json_is_one_object_with_the_figures(fake: FakeSession, capsys):
    assert command_line.main(["generate", "-p", "hi", "--json", "--seed", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {key: report[key] for key in ("text", "prompt_tokens", "tokens", "finish_reason")} == {
        "text": "one two",
        "prompt_tokens": [7, 8],
        "tokens": [1, 2, 3],
        "finish_reason": "length",
    }
    assert report["timings"] == {
        "load_s": 0.5,
        "prompt_s": 0.1,
        "first_token_s": 0.2,
        "decode_s": 1.5,
        "tokens_per_s": 2.0,
    }
    assert report["memory"]["budget_bytes"] == 100 * MIB
    assert report["memory"]["planned_bytes"] == 90 * MIB
    assert report["memory"]["peak_bytes"] > 0
    assert (report["seed"], report["notes"]) == (5, ["a note"])


def test_flags_and_files_reach_the_session(fake: FakeSession, tmp_path: Path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'pacer = "llmcad"\nfallback = "fixed"\nno-overlap = true\n'
        "frequency-penalty = 0.5\npresence-penalty = -0.25\n"
        'logit-bias = ["7+1.5", "8-inf"]\ntemp = 0.9\n'
    )
    command = "generate -m big.gguf -md small.gguf -n 9 -c 128 -t 3 -ctk q8_0 --memory-budget 2G"
    command += f" --temp 0.5 --top-k 7 --seed 3 --stop A --stop B --draft-max 5 --config {file}"
    assert command_line.main([*command.split(), "-p", "hi"]) == 0
    load = fake.load_settings
    assert (load.model, load.draft) == (Path("big.gguf"), Path("small.gguf"))
    assert (load.ctx_size, load.threads) == (128, 3)
    assert load.options == {"gguf": GgufOptions(cache_type_k="q8_0")}
    assert load.memory_budget == 2 << 30
    assert fake.engine_settings == EngineSettings(
        pacer="llmcad", fallback="fixed", draft_max=5, no_overlap=True
    )
    assert fake.sampling == SamplingParams(
        temperature=0.5,
        top_k=7,
        frequency_penalty=0.5,
        presence_penalty=-0.25,
        logit_bias={7: 1.5, 8: -math.inf},
        seed=3,
    )
    assert (fake.prompt, fake.max_tokens, fake.stop) == ("hi", 9, ("A", "B"))


def test_the_seed_is_random_and_reported(fake: FakeSession, capsys):
    assert command_line.main(["generate", "-p", "hi", "--temp", "1"]) == 0
    assert fake.sampling is not None
    assert f"seed: {fake.sampling.seed}" in capsys.readouterr().err


def test_no_guesses_are_no_draft(fake: FakeSession, capsys):
    command = "generate -m m.gguf -md d.gguf --draft-max 0 -p hi"
    assert command_line.main(command.split()) == 0
    assert fake.load_settings.draft is None
    assert "no draft is loaded, because --draft-max is 0" in capsys.readouterr().err


@pytest.mark.parametrize("names", [(), ("-m", "target", "-md", "edgespec-draft")])
def test_the_embedded_pair_is_used_without_models_and_by_its_names(
    names: tuple[str, ...], fake: FakeSession
):
    assert command_line.main(["generate", *names, "-p", "hi"]) == 0
    assert fake.load_settings.model.name.startswith("edgespec-target")
    assert fake.load_settings.draft.name.startswith("edgespec-draft")


def test_without_a_command_the_next_steps_are_shown(capsys):
    assert command_line.main([]) == 2
    out, err = capsys.readouterr()
    assert "edgespec demo" in out and "edgespec generate -p" in out and "--help" in out
    assert "no command given" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_trace_on_a_full_disk_costs_a_note_and_not_the_text(fake: FakeSession, capsys):
    assert command_line.main(["generate", "-p", "hi", "--trace", "/dev/full"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "one two"
    assert "note: the trace /dev/full could not be written: No space left" in shown.err
