"""`edgespec tune`: what competes, who leaves, who wins, and the file that is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_rows import row
from edgespec import registry
from edgespec.bench import bench_runs
from edgespec.bench.bench_report import SkippedMode
from edgespec.bench.bench_runs import Bench, ModelSurvey, Prompt, Results, run_all
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import BenchDraft
from edgespec.bench.tuned_modes import Variant, fastest, slower_half, variants
from edgespec.cli import command_line
from edgespec.cli.commands import tune
from edgespec.cli.flags import parser
from edgespec.cli.invocation import settings_from
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings, read_config
from test_end_to_end import edgespec

A, B = (BenchDraft(Path(f"{name}.gguf"), name) for name in "ab")
NAMES = ("defaults", "x", "y", "z")


def found(*drafts: BenchDraft, given: tuple[str, ...] = ()) -> dict[str, Variant]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "find", lambda _: SimpleNamespace(gpu=lambda: None, name="gguf"))
        draft = drafts[0].path if drafts else None
        load = LoadSettings(model="big.gguf", draft=draft, threads=4)
        these = variants(load, EngineSettings(), drafts, given)
    return {one.mode.strategy: one for one in these}


def test_each_variant_is_one_change_of_the_defaults() -> None:
    assert [*found(A, B)] == [
        *("defaults", "model-draft=b.gguf", "no-overlap=true", "no-draft=true", "draft-max=8"),
        *("draft-max=24", "draft-max=48", "lookup=false", "no-draft=true, lookup=true"),
        "threads=2",
    ]


def test_the_engine_and_the_loading_have_what_the_name_says() -> None:
    all_of = found(A, B)
    engines = {name: one.mode.engine for name, one in all_of.items()}
    assert engines["draft-max=48"].pins_draft_max and not engines["defaults"].pins_draft_max
    assert engines["no-draft=true"].lookup is False and all_of["no-draft=true"].mode.draft is None
    assert all_of["threads=2"].mode.changed == {"threads": 2}
    assert all_of["model-draft=b.gguf"].mode.draft == B
    assert not any(engine.remember for engine in engines.values())


def test_what_the_user_gave_stays() -> None:
    assert not {"threads=2", "no-overlap=true"} & found(A, given=("threads", "no_overlap")).keys()


def test_a_model_without_a_draft_is_tuned_too() -> None:
    assert [*found()] == ["defaults", "lookup=true", "threads=2"]


def results(*rates: dict[str, float]) -> Results:
    """Speeds of each turn, by mode."""
    rows = [row(mode, rate, "p", n) for n, turn in enumerate(rates) for mode, rate in turn.items()]
    return Results(rows=rows)


def test_after_a_turn_the_faster_half_goes_on() -> None:
    first = dict(zip(NAMES, (5.0, 6.0, 7.0, 8.0), strict=True))
    assert slower_half(results(first), NAMES) == ["x"]
    failed = results(first)
    failed.failures.append(SkippedMode("z", "no room"))
    assert slower_half(failed, NAMES) == ["x", "z"]


def test_without_the_first_one_nobody_goes_on() -> None:
    assert slower_half(results({"x": 6.0}), NAMES) == [*NAMES]


def test_where_nothing_is_faster_nobody_goes_on() -> None:
    assert slower_half(results(dict.fromkeys(NAMES, 5.0)), NAMES) == [*NAMES]


def test_the_fastest_in_every_turn_wins() -> None:
    turns = {"defaults": 5.0, "x": 6.0, "y": 7.0}
    assert fastest(results({**turns, "z": 99.0}, turns), NAMES) == "y"
    assert fastest(results(turns), NAMES) == "defaults", "one turn is none"
    assert fastest(results(turns, {**turns, "y": 5.1}), NAMES) == "x", "a gain within the noise"


def test_who_has_left_runs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def measure(bench: Bench, turn: Any, tick: Callable[[], None]) -> Any:
        ran.append(turn.mode)
        if turn.mode == "no-draft=true":
            raise EdgespecError("no room")
        return row(turn.mode, 9.0 if turn.mode == "draft-max=8" else 5.0).decoded

    monkeypatch.setattr(bench_runs, "_measure", measure)
    modes = [one.mode for one in found(A).values()]
    names = [mode.name for mode in modes]
    load, settings = LoadSettings(model="big.gguf"), BenchSettings(repetitions=3)
    bench = Bench(settings, load, modes, [Prompt("p", "Once")])
    done = run_all(bench, lambda _: None, lambda *_: None, (), lambda now: slower_half(now, names))
    assert ran == [*names, "draft-max=8", "defaults", "draft-max=8", "defaults"]
    assert fastest(done, names) == "draft-max=8"
    assert [gone.reason for gone in done.failures] == ["no room"]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("flags", "exit_code", "says"),
    [
        ("--prompts none.txt", 2, "--prompts"),
        ("--temp warm", 2, "--temp warm"),
        ("--out /nowhere/tuned.toml", 2, "nowhere"),
        ("-m none.gguf", 3, "none.gguf"),
        ("--memory-budget 1MiB", 4, "too small"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    flags: str, exit_code: int, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "tuned.toml"))
    assert command_line.main(["tune", *out, *flags.split()]) == exit_code
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("best", "draft", "draft_max"),
    [("no-draft=true", None, 48), ("draft-max=8", embedded_pair().draft, 8)],
)
def test_the_file_of_the_winner_is_understood(
    best: str, draft: Path | None, draft_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without the draft named it, too, and was refused."""

    def run_all(bench: Bench, *others: object) -> Results:
        rates = {mode.name: 5.0 + mode.name.startswith(best) for mode in bench.modes}
        return results(rates, rates)

    monkeypatch.setattr(tune, "survey", lambda *args: ModelSurvey(0, {}))
    monkeypatch.setattr(tune, "run_all", run_all)
    out = tmp_path / "tuned.toml"
    words = ["tune", "--memory-budget", "1GiB", "--temp", "0.5", "--out", str(out)]
    assert command_line.main(words) == 0
    found = settings_from(parser.parse(["generate", "-p", "x", "--config", str(out)]))
    assert (found.load.draft, found.load.memory_budget) == (draft, 1 << 30)
    assert (found.generate.draft_max, found.generate.temperature) == (draft_max, 0)


def test_no_file_is_written_where_the_defaults_are_best(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_all(bench: Bench, *others: object) -> Results:
        return results(*[{mode.name: 5.0 for mode in bench.modes}] * 2)

    monkeypatch.setattr(tune, "survey", lambda *args: ModelSurvey(0, {}))
    monkeypatch.setattr(tune, "run_all", run_all)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "--memory-budget", "1GiB", "--temp", "0.5"]
    assert command_line.main(words) == 0
    assert capsys.readouterr().out.rstrip().endswith("The defaults are best.")
    assert not [*tmp_path.iterdir()]
    assert command_line.main([*words, "--out", "asked.toml"]) == 0
    assert (tmp_path / "asked.toml").exists()


@pytest.mark.slow
def test_the_embedded_pair_is_tuned_and_writes_the_same_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, own_cache_folder: Path
) -> None:
    out = tmp_path / "tuned.toml"
    words = ["tune", "--memory-budget", "200MiB", "-c", "256", "--quick", "--out", str(out)]
    assert command_line.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert max(one["peak_bytes"] for one in told["trials"]) <= 200 << 20
    assert read_config(out)["ctx_size"] == told["settings"]["ctx_size"] == 256
    ask = ("generate", "-p", "def gcd(a, b):", "-n", "24", "--json")
    tuned, usual = edgespec(*ask, "--config", str(out)), edgespec(*ask, "-c", "256")
    assert tuned.json["tokens"] == usual.json["tokens"]
    assert tuned.json["memory"]["peak_bytes"] <= 200 << 20
