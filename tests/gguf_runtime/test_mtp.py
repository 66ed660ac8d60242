"""Targets with a layer of their own that guesses (MTP): what the layer says is what llama.cpp's own
driver computes, its texts are the target's own, and nothing names it but the file."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec import registry
from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.memory import process
from edgespec.memory.budget import MIB
from edgespec.ports import LanguageModel
from edgespec.rules.sampling import SamplingParams
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.file import heads
from edgespec_runtimes.gguf.file.architectures import ARCHITECTURES
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.head import GgufOwnHead
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf
from features_contract import TOKENS, FeaturesContract, Received
from head_cases import LINE, PROMPT, head_request
from one_tree import ROOT, OneTree
from paging_contract import load_either, load_paged
from port_calls import evaluate, prefill
from sentences import hold_sentence, refuses
from zoo_files import write_apart, write_guessing

TREE = EngineSettings(lookup=False, fallback="full", draft_max=8, step_aside=False)
GREEDY = SamplingParams(temperature=0)
HYBRID, PLAIN = "qwen35", "glm4moe"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return write_guessing(folder / "plain.gguf", PLAIN)


@pytest.fixture(scope="module", params=[HYBRID, PLAIN])
def good(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A target whose layer knows it."""
    return write_guessing(folder / f"{request.param} good.gguf", request.param, knows=True)


def prepare(path: Path, owner: str = "target", options: GgufOptions | None = None) -> PreparedGguf:
    request = head_request(
        path,
        owner,
        target=path if owner == "draft" else None,
        ctx_size=128,
        max_nodes=17,
        max_branches=8,
        batch_size=16,
    )
    return runtime.prepare(dataclasses.replace(request, options=options) if options else request)


def open_target(path: Path, is_paged: bool = False) -> GgufModel:
    with closing(prepare(path)) as prepared, closing(prepare(path, "draft")) as layer:
        prepared.offer_features(layer.info.feature_layers, layer.info.feature_values)
        return load_paged(prepared, 0.3) if is_paged else prepared.load(None)


def open_layer(path: Path) -> GgufOwnHead:
    return load_either(prepare(path, "draft"))


class TestATargetGivesItsLastState(FeaturesContract):
    layers = (7,)

    @pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)])
    def model_factory(
        self, plain: Path, request: pytest.FixtureRequest
    ) -> Callable[[], LanguageModel]:
        return lambda: open_target(plain, is_paged=request.param)


@pytest.mark.costly
@pytest.mark.parametrize("architecture", [HYBRID, PLAIN])
def test_features_are_what_llama_cpp_itself_gives(architecture: str, tmp_path: Path) -> None:
    received = Received()
    with closing(open_target(write_guessing(tmp_path / "m.gguf", architecture))) as model:
        model.give_features((7,), received)
        prefill(model, TOKENS[:8])
        own = llama_cpp_ext.llama_get_embeddings_nextn(model._context)
        assert np.array_equal(received.rows[:, 0], np.ctypeslib.as_array(own, (8, 256)))


class LayerDriver:
    """llama.cpp's own context for the layer, as its own program drives it."""

    def __init__(self, path: Path) -> None:
        self._model, _ = loading.load_mapped(path, mtp=True)
        shape = contexts.ContextShape(128, n_batch=32, n_outputs=32, n_branches=1, n_threads=1)
        self._stop = AbortFlag()
        self._context = contexts.new_context(self._model, shape, None, self._stop)
        llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, True)

    def close(self) -> None:
        lib.llama_free(self._context)
        self._model.close()

    def step(
        self, tokens: Sequence[int], features: np.ndarray, begin: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits and states after pairs of a token and a feature, from place `begin` on."""
        batch = lib.llama_batch_ext_init(self._context)
        for place, (token, row) in enumerate(zip(tokens, features, strict=True), begin):
            index = lib.llama_batch_ext_add_token(batch, 0, token)
            lib.llama_batch_ext_set_pos(batch, index, ctypes.byref(ctypes.c_int32(place)))
            values = np.ascontiguousarray(row)
            pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            state = lib.llama_embd(pointer, 1, values.size)
            assert lib.llama_batch_ext_set_embd_token(batch, index, state)
            lib.llama_batch_ext_set_output_logits(batch, index, True)
        assert not lib.llama_process(self._context, lib.LLAMA_PROCESS_TYPE_DECODE, batch)
        lib.llama_batch_ext_free(batch)
        n = len(tokens)
        logits = np.array([lib.llama_get_logits_ith(self._context, i)[:512] for i in range(n)])
        states = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
        return logits.astype(np.float32), np.ctypeslib.as_array(states, (n, 256)).copy()


@pytest.mark.costly
@pytest.mark.parametrize("architecture", [HYBRID, PLAIN])
def test_every_branch_of_a_tree_is_llama_cpp_s_own_line(architecture: str, tmp_path: Path) -> None:
    path = write_guessing(tmp_path / "m.gguf", architecture)
    random = np.random.default_rng(1)
    states = random.standard_normal((len(PROMPT), 1, 256)).astype(np.float32)
    tree = OneTree(40)
    left, right = tree.add(ROOT, 41, 0.5), tree.add(ROOT, 60, 0.4)
    ends = [tree.add(left, 42, 0.3), tree.add(left, 43, 0.2), tree.add(right, 44, 0.1)]
    with closing(open_layer(path)) as layer:
        layer.take_features(0, states)
        prefill(layer, PROMPT)
        logits = evaluate(layer, tree, range(len(tree)))
    for end in ends:
        with closing(LayerDriver(path)) as driver:
            driver.step(PROMPT[1:], states[:-1, 0], 0)
            feature = states[-1:, 0]
            for place, node in enumerate(tree.path(end), len(PROMPT) - 1):
                expected, feature = driver.step([int(tree.token[node])], feature, place)
                assert np.array_equal(logits[node], expected[0]), f"node {node}"


def least_budget(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The smallest budget of a target alone, in a process that is always of one size."""
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    alone = edgespec.plan(LoadSettings(model=path, memory_budget="8GiB"))
    return f"{alone.smallest_bytes}B"


@pytest.mark.parametrize("good", [PLAIN], indirect=True)
def test_the_layer_is_the_draft_s_memory(good: Path) -> None:
    settings = LoadSettings(model=good, draft=good, memory_budget="8GiB")
    rows = {(row.owner, row.what): row.nbytes for row in edgespec.plan(settings).rows}
    header = read_header(good)
    n_bytes = sum(tensor.nbytes for tensor in heads.own_shape(header).own)
    assert n_bytes <= rows["draft", "layer for guessing (MTP)"] < n_bytes + (64 << 10)
    output = header.tensors_by_name["output.weight"].nbytes
    assert rows["draft", "copy of the target's output"] >= output
    assert rows["target", "features (1 layers)"] > 0
    alone = edgespec.plan(LoadSettings(model=good, memory_budget="8GiB"))
    assert not any("features" in row.what or row.owner == "draft" for row in alone.rows)
    skipped = sum(header.tensors_by_name[name].nbytes for name in heads.skipped(header))
    (weights,) = (row.nbytes for row in alone.rows if row.what == "weights")
    assert weights < header.weight_bytes - skipped // 2


@pytest.mark.parametrize("good", [PLAIN], indirect=True)
def test_a_generation_can_be_closed_and_cancelled_at_any_token(good: Path) -> None:
    settings = LoadSettings(model=good, draft=good, memory_budget="8GiB")
    with edgespec.load(settings, LINE) as session:
        whole = session.generate(PROMPT, GREEDY, 16).tokens
        for n_taken in (0, 1, 4):
            stream = session.stream(PROMPT, GREEDY, 16)
            for _, _ in zip(range(n_taken), stream, strict=False):
                pass
            session.cancel() if n_taken % 2 else stream.close()
            stream.close()
            assert session.generate(PROMPT, GREEDY, 16).tokens == whole


@pytest.mark.costly
@pytest.mark.parametrize(
    ("changes", "said"),
    [({"n_parallel": 2}, "`n_parallel`"), ({"memory_budget": "least"}, "`memory_budget`")],
    ids=["several texts", "small budget"],
)
def test_where_it_cannot_guess_the_target_runs_alone_and_a_note_says_why(
    changes: dict[str, object], said: str, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "memory_budget" in changes:
        changes = {"memory_budget": least_budget(plain, monkeypatch)}
    settings = LoadSettings(model=plain, memory_budget="8GiB").model_copy(update=changes)
    plan = edgespec.plan(settings.model_copy(update={"draft": plain}))
    assert not any(row.owner == "draft" or "features" in row.what for row in plan.rows)
    (note,) = (note for note in plan.notes if "does not guess for" in note)
    assert said in note


def test_what_llama_cpp_has_no_graph_for_is_a_note(tmp_path: Path) -> None:
    path = write_guessing(tmp_path / "m.gguf", "step35")
    assert not registry.find(path).guesses_itself(path)
    plan = edgespec.plan(LoadSettings(model=path, memory_budget="8GiB"))
    (note,) = (note for note in plan.notes if "(MTP)" in note)
    hold_sentence(note)
    with refuses(ModelError):
        prepare(path, "draft")


@pytest.mark.parametrize("name", ["nextn.enorm", "ffn_gate_inp"])
def test_a_missing_tensor_is_named_before_llama_cpp_ends_the_process(
    name: str, plain: Path
) -> None:
    header = read_header(plain)
    tensors = tuple(t for t in header.tensors if t.name != f"blk.7.{name}.weight")
    assert name in str(heads.obstacle(dataclasses.replace(header, tensors=tensors)))
    assert heads.obstacle(header) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [name for name, found in ARCHITECTURES.items() if found.own_layer is not None]
)
def test_every_architecture_s_layer_guesses(architecture: str, tmp_path: Path) -> None:
    path = write_guessing(tmp_path / "m.gguf", architecture)
    texts = []
    for draft in (None, path):
        settings = LoadSettings(model=path, draft=draft, memory_budget="8GiB", ctx_size=128)
        with edgespec.load(settings, TREE) as session:
            texts.append(session.generate(PROMPT, GREEDY, 16))
    assert texts[0].tokens == texts[1].tokens
    assert texts[1].speculation.drafted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "is_paged"),
    [(HYBRID, False), ("qwen35moe", True), (PLAIN, False), ("deepseek2", False)],
)
def test_a_layer_in_a_file_of_its_own_guesses(
    architecture: str, is_paged: bool, tmp_path: Path
) -> None:
    """Repositories of 2026 have it in a file `mtp-...`; llama.cpp took it for a whole model, and
    ended the process."""
    path, layer = write_apart(tmp_path / "m.gguf", architecture)
    alone = LoadSettings(model=path, memory_budget="8GiB", ctx_size=128)
    pair = alone.but({"draft": layer})
    if is_paged:
        pair = pair.but({"memory_budget": edgespec.plan(pair).smallest_bytes + (64 << 10)})
    texts = []
    for settings in (alone, pair):
        with edgespec.load(settings, TREE) as session:
            texts.append(session.generate(PROMPT, GREEDY, 16))
            assert session.plan.paged == (is_paged and settings is pair)
    assert texts[0].tokens == texts[1].tokens
    assert texts[1].speculation.tokens_per_pass > 2
    head = registry.describe(layer).head
    assert head is not None and head.hidden_size == read_header(path).embedding_length
    with refuses(ModelError):
        edgespec.plan(alone.but({"model": layer}))
