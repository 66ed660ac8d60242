"""Every architecture that llama.cpp knows writes llama.cpp's own text within its budget, resident
and paged, alone and with a draft, or is refused with a sentence; none ends the process.

Resident with a draft and paged alone are tried on every second one, the other two on the rest;
`python tests/zoo.py` tries all ways on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from edgespec_runtimes.gguf.file.architectures import architecture
from edgespec_runtimes.gguf.llama import loading
from zoo import verdicts, ways_of
from zoo_species import NO_TEXT, all_species
from zoo_trials import DENSE, WAYS, Verdict

pytestmark = pytest.mark.long

SPECIES = {species.name: species for species in all_species()}
REFUSED = [
    name
    for name, species in SPECIES.items()
    if architecture(species.architecture).purpose or species.architecture in NO_TEXT
]
WRITING = [name for name in SPECIES if name not in REFUSED]


Found = Callable[[str], Verdict]


@pytest.fixture(scope="module")
def found() -> Iterator[Found]:
    """Waits for the verdict on a species: all take minutes, and no test may wait that long."""
    known: dict[str, Verdict] = {}
    with closing(verdicts(halves=True)) as coming:

        def verdict_on(name: str) -> Verdict:
            while name not in known:
                verdict = next(coming)
                known[verdict.name] = verdict
            return known[name]

        yield verdict_on


@pytest.mark.parametrize("name", WRITING)
def test_it_writes_llama_cpps_text_within_its_budget(name: str, found: Found) -> None:
    verdict = found(name)
    assert not verdict.refusal
    assert set(verdict.runs) == set(ways_of(SPECIES[name]))
    assert not verdict.complaints


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_sentence(name: str, found: Found) -> None:
    assert found(name).refusal
    assert "\n" not in found(name).refusal


def test_only_what_is_not_quantised_rounds(found: Found) -> None:
    """A dense model of quantised matrices differs in no token, and llama.cpp's own logits not in a
    bit, unless llamafile's kernel for AVX alone adds up several rows otherwise than one."""
    verdict = found(DENSE)
    loading.start()
    extensions = loading.build().split()
    if "AVX" not in extensions or "AVX2" in extensions:
        assert verdict.rounding == 0.0
    assert not any(run.differences for run in verdict.runs.values())


def test_drafts_are_right_now_and_then(found: Found) -> None:
    """Otherwise the zoo would show little: nothing accepted, or nothing rejected."""
    runs = [run for name in WRITING for way, run in found(name).runs.items() if WAYS[way][1]]
    accepted, verified = sum(run.accepted for run in runs), sum(run.drafted for run in runs)
    assert 0.01 * verified < accepted < 0.9 * verified


def test_texts_are_not_all_of_one_token(found: Found) -> None:
    runs = [run for name in WRITING for run in found(name).runs.values()]
    n_kinds = [len(set(run.tokens)) for run in runs]
    assert sum(n_kinds) / len(n_kinds) > 12
