"""Models on a GPU that llama.cpp finds here: contracts, texts and budgets at several layer counts.

`make test-vulkan` brings a device to machines that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from test_gguf_state import request

from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import ggml, gpu
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf
from paging_contract import PagingContract, load_either, one_by_one
from port_contract import PortContract
from state_contract import StateContract
from test_end_to_end import big, generate, of_plan
from test_end_to_end import edgespec as edgespec_alone

__all__ = ["big"]

pytestmark = pytest.mark.skipif(
    gpu.find() is None, reason="llama.cpp finds no GPU here; `make test-vulkan` brings one"
)
PAIR = embedded_pair()
NEAR = 0.3
"""Logits of one device may differ by so much between batches of another shape."""
MIB = 1 << 20


def prepared(n_layers: int) -> PreparedGguf:
    options = GgufOptions(flash_attn="on", n_gpu_layers=n_layers)
    return runtime.prepare(ModelRequest(PAIR.target, "target", 256, 17, 17, 2, options=options))


def on_gpu(n_layers: int) -> LanguageModel:
    """The target with layers there; the rest is paged."""
    return load_either(prepared(n_layers), is_paged=n_layers != 99)


class TestATargetKeepsTheContract(PortContract):
    atol = NEAR

    @pytest.fixture(params=[3, 99])
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        return lambda: on_gpu(request.param)


class TestWhatStaysKeepsThePagingContract(PagingContract):
    @pytest.fixture
    def paged(self) -> Iterator[LanguageModel]:
        with closing(on_gpu(3)) as model:
            yield model


class TestStateLeavesTheDevice(StateContract):
    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        options = GgufOptions(flash_attn="on", n_gpu_layers=99)
        return lambda: load_either(runtime.prepare(request(PAIR.target, options=options)))


def tokens(draft: Path | None, n_layers: int, n_layers_draft: int, prompt: str) -> list[int]:
    """The text; with a draft every round guesses."""
    load = LoadSettings.model_validate(
        {
            "model": PAIR.target,
            "draft": draft,
            "memory_budget": "2GiB",
            "ctx_size": 256,
            "n_gpu_layers": n_layers,
            "n_gpu_layers_draft": n_layers_draft,
        }
    )
    rules = EngineSettings(fallback="fixed", step_aside=False)
    with session.load(load, rules) as loaded:
        return [*loaded.encode(prompt), *loaded.generate(prompt, max_tokens=48).tokens]


def gap(written: Sequence[int], other: Sequence[int], n_layers: int) -> float:
    """Difference of the logits of the first tokens that differ; 0 if none differs."""
    if written == other:
        return 0.0
    i = next(i for i, pair in enumerate(zip(written, other, strict=False)) if len({*pair}) > 1)
    with closing(on_gpu(n_layers)) as model:
        logits = one_by_one(model, written[:i])[-1]
    return abs(float(logits[written[i]] - logits[other[i]]))


PROMPTS = ["def gcd(a, b):", "Once upon a time", "for line in sys.stdin:\n    "]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("n_layers", [0, 3, 99])
def test_a_draft_changes_no_token(n_layers: int, prompt: str):
    """But near ties."""
    alone = tokens(None, n_layers, 0, prompt)
    drafted = tokens(PAIR.draft, n_layers, 0, prompt)
    assert gap(alone, drafted, n_layers) < NEAR if n_layers else drafted == alone


def test_a_draft_on_the_device_changes_no_token():
    assert tokens(PAIR.draft, 0, 99, PROMPTS[0]) == tokens(None, 0, 0, PROMPTS[0])


@pytest.mark.parametrize("n_layers", [0, 3, 99])
def test_the_process_stays_within_the_budget(big: Path, n_layers: int):
    """A driver that computes on the CPU takes what is on the device from the process, too."""
    layers = ("-ngl", str(n_layers), "-ngld", str(n_layers))
    smallest = edgespec_alone(*of_plan(big), *layers).json["smallest_bytes"]
    budget = smallest + 8 * MIB
    done = generate("-m", big, "-md", PAIR.draft, "--memory-budget", str(budget), *layers)
    is_software = "llvmpipe" in ggml.device_name(gpu.find() or 0)
    there = is_software * done.json["plan"]["gpu_planned_bytes"]
    assert done.json["memory"]["peak_bytes"] <= budget + there
