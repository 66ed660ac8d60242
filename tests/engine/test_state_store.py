"""Learnt state of a pair is there in the next run, and never in anybody's way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import MAX_RECALLED, Mixer
from edgespec.engine.state_store import recalled, state_file
from edgespec.files.json_file import JsonFile
from edgespec.models.embedded import embedded_pair
from edgespec.rules.sampling import SamplingParams
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.values import PagingStats, PassReport
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language

LANGUAGE = random_language(5, N_VOCAB)


def pair() -> tuple[FakeModel, FakeModel]:
    draft = blend(LANGUAGE, random_language(6, N_VOCAB), 0.4)
    return FakeModel(LANGUAGE, N_VOCAB), FakeModel(draft, N_VOCAB)


def learnt_in(folder: Path, *samplings: SamplingParams) -> dict[str, dict[str, float]]:
    target, draft = pair()
    memory = state_file(folder, target.info, draft.info)
    with Engine(target, draft, EngineSettings(step_aside=False), state=memory) as engine:
        for sampling in samplings:
            finish(engine.generate(PROMPT, sampling, 60))
    (file,) = folder.iterdir()
    content: dict[str, dict[str, float]] = JsonFile(file.parent, file.stem).read()
    return content


@pytest.mark.slow
def test_all_sampling_temperatures_share_what_is_learnt(tmp_path: Path) -> None:
    content = learnt_in(tmp_path, GREEDY, WARM)
    assert len([name for name in content if not name.startswith("rounds@")]) == 1


def test_the_next_run_goes_on_from_there(tmp_path: Path) -> None:
    first = learnt_in(tmp_path, GREEDY)["confidences"]
    begun = Mixer()
    begun.load_state_dict(first)
    assert begun.state_dict()["draft sharpness"] == first["draft sharpness"]
    assert begun.state_dict()["draft sharpness precision"] <= MAX_RECALLED
    assert learnt_in(tmp_path, WARM)["confidences"] != first


@pytest.mark.costly
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"confidences": 1}',
        b'{"confidences": {"draft sharpness": "x"}}',
        b'{"confidences": {"draft sharpness": NaN}}',
        b'{"confidences": {"draft sharpness": 1' + 399 * b"0" + b"}}",
        b'{"confidences": {"draft sharpness": 1e300, "draft sharpness precision": 1}}',
        b'{"confidences": {"draft sharpness": 1, "draft sharpness precision": -5}}',
        b'{"confidences": {"a precision": 3, "b": -1}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_memory_is_harmless(tmp_path: Path, content: bytes) -> None:
    target, draft = pair()
    file = state_file(tmp_path, target.info, draft.info)
    try:
        file.write(json.loads(content))
    except (ValueError, RecursionError):
        file.path.write_bytes(content)
    assert learnt_in(tmp_path, GREEDY)["confidences"]["draft sharpness precision"] > 0


@pytest.mark.parametrize("remember", [True, False])
def test_a_session_remembers_unless_it_is_told_not_to(
    remember: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.files.cache_folder.calibrations", lambda: tmp_path)
    embedded = embedded_pair()
    settings = LoadSettings(model=embedded.target, draft=embedded.draft, ctx_size=128)
    rules = EngineSettings(step_aside=False, remember=remember)
    with session.load(settings, rules) as running:
        running.generate("def", max_tokens=8)
    assert len(list(tmp_path.iterdir())) == remember


def test_what_rounds_cost_is_remembered_for_where_the_weights_are(tmp_path: Path) -> None:
    target, draft = pair()
    memory = state_file(tmp_path, target.info, draft.info)
    with Engine(target, draft, state=memory) as engine:
        finish(engine.generate(PROMPT, GREEDY, 20))
        learnt = engine.ledger.state_dict()
    assert recalled(memory)["rounds@0 tenths streamed"] == pytest.approx(learnt)


class Streamed(FakeModel):
    """Half of it is read in every pass, at a speed, and so many threads compute it."""

    def __init__(self, mb_per_s: float = 300.0, n_threads: int = 2) -> None:
        report = PassReport(wall_s=1.0, bytes_read=1_000_000, read_s=1.0 / mb_per_s)
        super().__init__(LANGUAGE, N_VOCAB, cost=lambda n: replace(report, n_tokens=n))
        self.info = replace(self.info, n_threads=n_threads)

    def paging(self) -> PagingStats:
        return PagingStats(segments=2, pinned_bytes=5, streamed_bytes=5)


def test_another_budget_has_costs_of_its_own_and_keeps_the_others(tmp_path: Path) -> None:
    target, draft = Streamed(), pair()[1]
    memory = state_file(tmp_path, target.info, draft.info)
    with Engine(target, draft, state=memory) as engine:
        finish(engine.generate(PROMPT, GREEDY, 20))
        engine.ledger.see_budget(PagingStats(segments=2, pinned_bytes=8, streamed_bytes=2))
        finish(engine.generate(PROMPT, GREEDY, 20))
    places = [name.split(",")[0] for name in recalled(memory) if name.startswith("rounds@")]
    assert places == ["rounds@5 tenths streamed", "rounds@2 tenths streamed"]


def spent_of(folder: Path, target: FakeModel, **rules: object) -> float:
    """Cost of guesses for the pair before a run, when the prompt is read."""
    draft = pair()[1]
    memory = state_file(folder, target.info, draft.info)
    with Engine(target, draft, EngineSettings(**rules), state=memory) as engine:
        events = engine.generate(PROMPT, GREEDY, 40)
        next(events)
        begun = engine.ledger.spent
        finish(events)
        return begun


def teach(folder: Path, target: FakeModel, **rules: object) -> None:
    """The folder holds what a run left in which guesses were dear."""
    spent_of(folder, target, **rules)
    (file,) = folder.iterdir()
    kept = JsonFile(file.parent, file.stem)
    content = kept.read()
    (place,) = (name for name in content if name.startswith("rounds@"))
    content[place]["spent"] = 1.0
    kept.write(content)


def test_costs_are_remembered_for_the_same_threads(tmp_path: Path) -> None:
    teach(tmp_path, Streamed())
    assert spent_of(tmp_path, Streamed(330.0)) == 1.0


@pytest.mark.costly
def test_costs_are_not_believed_of_other_threads(tmp_path: Path) -> None:
    teach(tmp_path, Streamed())
    assert spent_of(tmp_path, Streamed(300.0, 1)) == 0.0


@pytest.mark.costly
@pytest.mark.parametrize(
    "rules", [{"fallback": "full"}, {"pacer": "llmcad"}, {"draft_max": 1}, {"no_overlap": True}]
)
def test_costs_under_other_rules_are_not_believed(tmp_path: Path, rules: dict[str, object]) -> None:
    teach(tmp_path, Streamed(), **rules)
    assert spent_of(tmp_path, Streamed()) == 0.0
    assert spent_of(tmp_path, Streamed(), **rules) == 1.0


@pytest.mark.slow
def test_costs_are_kept_apart_and_what_is_learnt_of_guesses_is_not(tmp_path: Path) -> None:
    for target in (Streamed(), Streamed(n_threads=1)):
        spent_of(tmp_path, target)
    (file,) = tmp_path.iterdir()
    content = JsonFile(file.parent, file.stem).read()
    costs = {name: told for name, told in content.items() if name.startswith("rounds@")}
    assert len(costs) == 2
    assert all("spent" in told for told in costs.values())
    assert "confidences" in content
