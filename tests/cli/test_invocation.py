"""Settings from flags, a config file and defaults."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edgespec.cli.invocation import CommandSettings, read_prompts, settings_from
from edgespec.errors import UsageError
from sentences import hold_sentence, refuses


def request(tmp_path: Path, config: str = "", **flags: object) -> CommandSettings:
    given = argparse.Namespace(**flags)
    if config:
        (tmp_path / "settings.toml").write_text(config)
        given.config = str(tmp_path / "settings.toml")
    return settings_from(given)


def test_flags_win_over_the_file(tmp_path: Path):
    result = request(tmp_path, "n-predict = 5\nctx-size = 64", max_tokens="7")
    assert (result.generate.max_tokens, result.load.ctx_size) == (7, 64)


def test_a_file_may_name_the_models(tmp_path: Path):
    load = request(tmp_path, 'model = "m.gguf"\nmodel-draft = "d.gguf"').load
    assert (load.model, load.draft) == (tmp_path / "m.gguf", tmp_path / "d.gguf")


@pytest.mark.parametrize(
    "line",
    [
        "model = 5",
        'model = ["m.gguf"]',
        "[model]\nname = 1",
        'model = ""',
        'model = "m"\ndraft = ""',
        'stop = "a"',
        "stop = [5]",
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_its_key(tmp_path: Path, line: str):
    with refuses(UsageError):
        request(tmp_path, line)


def test_the_flag_no_draft_overrules_the_file_and_says_so(tmp_path: Path):
    config = 'model = "m.gguf"\nmodel-draft = "d.gguf"\npacer = "llmcad"'
    result = request(tmp_path, config, no_draft=True)
    assert result.load.draft is None
    assert len(result.notes) == 2
    hold_sentence(result.notes[0])


def test_a_draft_by_flag_overrules_no_draft_in_the_file(tmp_path: Path):
    result = request(tmp_path, "no-draft = true", model="m.gguf", draft="d.gguf")
    assert result.load.draft == Path("d.gguf")
    assert not result.generate.no_draft


def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path):
    with refuses(UsageError):
        request(tmp_path, 'model = "m"\ndraft = "d"\nno-draft = true')


def test_no_draft_leaves_the_embedded_target_alone(tmp_path: Path):
    result = request(tmp_path, no_draft=True)
    assert result.load.draft is None
    assert result.notes == ()


def prompts(tmp_path: Path, name: str, content: str) -> list[str]:
    path = tmp_path / name
    path.write_bytes(content.encode())
    return read_prompts(path)


def test_every_line_of_a_text_file_is_a_prompt(tmp_path: Path):
    assert prompts(tmp_path, "p.txt", "one\r\n\n  two\u2028{}\n") == ["one", "  two\u2028{}"]


def test_a_file_of_json_lines_has_a_prompt_an_object(tmp_path: Path):
    lines = '{"name": "x", "prompt": "one\\ntwo"}\n\n{"prompt": "three"}\n'
    assert prompts(tmp_path, "p.jsonl", lines) == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.txt", "\n \n"),
        ("p.jsonl", '{"prompt": "one"}\n{"prompt'),
        ("p.jsonl", '{"text": "one"}'),
        ("p.jsonl", '["prompt"]'),
        ("p.jsonl", '{"prompt": ""}'),
        ("p.jsonl", "[" * 100_000),
        ("p.jsonl", "9" * 5000),
        ("p.jsonl", '{"prompt": "\\ud800"}'),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, content: str):
    with refuses(UsageError):
        prompts(tmp_path, name, content)


def test_a_file_may_call_models_by_their_names(tmp_path: Path):
    load = request(tmp_path, 'model = "target"\nmodel-draft = "draft"').load
    assert load.model.name.startswith("edgespec-target")
    assert load.draft is not None and load.draft.name.startswith("edgespec-draft")


def test_what_a_file_says_wrong_is_refused_by_its_key(tmp_path: Path):
    with refuses(UsageError):
        request(tmp_path, "ctx-size = -1")
    with refuses(UsageError):
        request(tmp_path, "ctx-size = 5", ctx_size="-2")


def test_no_guesses_in_the_file_are_no_draft(tmp_path: Path):
    result = request(tmp_path, 'model = "m.gguf"\ndraft = "d.gguf"\ndraft-max = 0')
    assert result.load.draft is None and result.generate.no_draft


@pytest.mark.parametrize(
    ("config", "lookup"), [("", None), ("lookup = true", True), ("lookup = false", False)]
)
def test_lookup_is_beside_a_draft_unless_a_file_says_it(
    config: str, lookup: bool | None, tmp_path: Path
):
    given = request(tmp_path, config)
    assert (given.generate.lookup, given.engine.lookup) == (lookup, lookup)


@pytest.mark.parametrize("given", [{}, {"draft_max": "48"}])
def test_the_usual_number_of_guesses_is_pinned_where_it_is_given(
    given: dict[str, str], tmp_path: Path
):
    rules = request(tmp_path, **given).engine
    assert (rules.draft_max, rules.pins_draft_max) == (48, bool(given))


def test_a_target_with_lookup_alone_takes_the_flags_of_drafting(tmp_path: Path):
    given = request(tmp_path, "lookup = true\nno-draft = true", draft_max="8")
    assert given.load.draft is None
    assert (given.generate.lookup, given.generate.draft_max) == (True, 8)
