"""The prompt cache that a server has where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgespec
from edgespec.cli.commands import serve
from edgespec.cli.console import Console
from edgespec.cli.flags import parser
from edgespec.cli.invocation import CommandSettings
from edgespec.files import cache_folder
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings
from zoo_files import write_model
from zoo_species import Species

RULES = edgespec.EngineSettings(remember=False)
LONG, TITLE = "def add(a, b):\n    return a + b\n" * 12, "the tea"


def served(model: Path | None = None, ctx_size: int = 512) -> LoadSettings:
    """Settings of a server with one place."""
    return LoadSettings(
        model=model or embedded_pair().target,
        memory_budget="1GiB",
        ctx_size=ctx_size,
        prompt_cache=cache_folder.prompts(),
    )


def test_serve_has_one_unless_a_file_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(settings: CommandSettings, *_: object) -> None:
        found.append(settings.load)
        raise RuntimeError

    found = list[LoadSettings]()
    monkeypatch.setattr(CommandSettings, "opened", refuse)
    off, other = tmp_path / "off.toml", str(tmp_path / "other")
    off.write_text("prompt-cache-size = 0")
    for flags in ([], ["--config", str(off)], ["--prompt-cache", other]):
        args = parser.parse(["serve", *flags])
        args.body_bytes = 0
        with pytest.raises(RuntimeError), serve.ExitStack() as stack:
            serve._one(args, Console(), None, stack, None)
    usual, none, named = found
    assert (usual.prompt_cache, usual.prompt_cache_size) == (cache_folder.prompts(), 2 << 30)
    assert (none.prompt_cache_size, str(named.prompt_cache)) == (0, other)
    assert [each.stores_prefixes for each in found] == [False, False, True]


def test_a_turn_reads_what_is_new_after_another_text_and_after_a_restart(
    own_cache_folder: Path,
) -> None:
    def reused(session: edgespec.Session, more: str = "") -> int:
        result = session.generate(LONG + more, max_tokens=2)
        return result.reused_tokens

    with edgespec.load(served(), RULES) as session:
        assert reused(session) == 0
        session.generate(TITLE, max_tokens=2)
        n_tokens = len(session.encode(LONG))
        assert reused(session, "def sub") >= n_tokens - 128
    with edgespec.load(served(), RULES) as session:
        assert reused(session, "def mul") >= n_tokens - 128
    with edgespec.load(served().model_copy(update={"ctx_size": 640}), RULES) as session:
        assert reused(session, "def div") >= n_tokens - 128, "a longer context finds them, too"


@pytest.mark.slow
def test_layers_with_windows_take_no_memory_for_it(tmp_path: Path, own_cache_folder: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Species("gemma3"), {"context_length": 2048})
    load = served(path, ctx_size=2048)
    without = load.model_copy(update={"prompt_cache": None})
    planned, expected = edgespec.plan(load, RULES), edgespec.plan(without, RULES)
    assert planned.planned_bytes == expected.planned_bytes
    with edgespec.load(load, RULES) as session:
        session.generate([5, 9, 11] * 40, max_tokens=2)
    assert not [*own_cache_folder.rglob("*.edgespec-block")]


def test_a_folder_that_cannot_be_used_is_no_obstacle(own_cache_folder: Path) -> None:
    own_cache_folder.mkdir(parents=True)
    cache_folder.prompts().write_text("a file")
    with edgespec.load(served(), RULES) as session:
        assert session.generate(LONG, max_tokens=2).tokens
