"""The shipped ONNX pair keeps the port's contract, and its text is onnxruntime's own.

The whole target is decoded token by token, on the twenty shipped prompts. A token may differ only
where rounding decides: the two best logits lie closer than twice what they move when onnxruntime is
fed several tokens at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel, PassPart
from edgespec.rules.sampling import SamplingParams
from engine_cases import AskedEngine as Engine
from one_tree import OneTree
from onnx_models import open_paged, open_resident
from onnx_reference import WholeModel
from port_calls import prefill
from port_contract import PortContract
from slots_contract import SlotsContract

MODELS = Path(__file__).parents[2] / "models"
TARGET, DRAFT = MODELS / "edgespec-target-onnx-fp16", MODELS / "edgespec-draft-onnx-fp16"
N_TOKENS = 24
SIZES = {"ctx_size": 256, "max_nodes": 17, "max_branches": 8}
TREES = EngineSettings(draft_max=16, fallback="fixed", step_aside=False)
"""Every round verifies a tree, whatever this machine's clock says of it."""


HALF_STEPS = 0.02
"""Logits of half precision, between 8 and 16, are 0.0078 apart; onnxruntime's own differ by one
such step when it is fed several tokens at once."""


@pytest.mark.slow
class TestSlotsOfAPagedExport(SlotsContract):
    atol = atol_beside = HALF_STEPS

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: open_paged(TARGET, n_slots=3, **SIZES)


@pytest.mark.slow
def test_texts_in_one_pass_round_as_each_does_alone() -> None:
    """Rows of several texts are batches of their own; the weights are read once for all."""
    model = open_paged(TARGET, share=0.0, n_slots=3, **SIZES)
    try:
        prompts = [[300 + 17 * n + i for i in range(20 + n)] for n in range(3)]
        trees = [OneTree(prompt[0]) for prompt in prompts]
        for tree in trees:
            for n in range(4):
                tree.add(n // 2, 400 + n, 0.5)
        for text, prompt in enumerate(prompts):
            prefill(model, prompt, slot=text)
        parts = [PassPart(text, tree, range(5)) for text, tree in enumerate(trees)]
        alone = []
        for part in parts:
            alone += [rows.copy() for rows in model.evaluate([part])]
            model.truncate(len(prompts[part.slot]), slot=part.slot)
        of_one = model.last_report.bytes_read
        together = model.evaluate(parts)
        assert all(map(np.array_equal, together, alone))
        assert 0 < model.last_report.bytes_read <= 1.5 * of_one
    finally:
        model.close()


class TestResidentExportKeepsTheContract(PortContract):
    atol = HALF_STEPS

    @pytest.fixture(
        params=[pytest.param(TARGET, marks=pytest.mark.slow), DRAFT], ids=["target", "draft"]
    )
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        return lambda: open_resident(request.param, **SIZES)


@pytest.mark.slow
class TestPagedExportKeepsTheContract(PortContract):
    atol = HALF_STEPS

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return lambda: open_paged(TARGET, share=0.3, **SIZES)


@dataclass
class OrtText:
    """A text that onnxruntime writes after one prompt."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)


@pytest.fixture(scope="module")
def whole() -> WholeModel:
    return WholeModel(TARGET / "model.onnx")


@pytest.fixture(scope="module")
def texts(whole: WholeModel) -> list[OrtText]:
    with ExitStack() as stack:
        draft = open_resident(DRAFT, **SIZES)
        stack.callback(draft.close)
        ends = draft.vocabulary.eog_tokens
        lines = (MODELS / "prompts.jsonl").read_text().splitlines()[:20]
        found = [OrtText(draft.vocabulary.encode(json.loads(line)["prompt"])) for line in lines]
    for text in found:
        whole.start()
        for token in text.prompt:
            logits = whole.decode(token)
        while len(text.tokens) < N_TOKENS:
            text.logits.append(logits)
            text.tokens.append(int(logits.argmax()))
            if text.tokens[-1] in ends:
                break
            logits = whole.decode(text.tokens[-1])
    return found


@pytest.fixture
def draft() -> Iterator[LanguageModel]:
    model = open_resident(DRAFT, **SIZES)
    yield model
    model.close()


def differing(
    target: LanguageModel, draft: LanguageModel, texts: list[OrtText]
) -> list[tuple[int, int, int]]:
    """(text, place, our token) wherever another token came than onnxruntime's, text by text.

    After each the comparison goes on from onnxruntime's token.
    """
    found = []
    accepted = 0
    with Engine(target, draft, TREES) as engine:
        for number, text in enumerate(texts):
            at = 0
            while at < len(text.tokens):
                start = [*text.prompt, *text.tokens[:at]]
                events = engine.generate(start, SamplingParams(), len(text.tokens) - at)
                ours = []
                for event in events:
                    ours.append(event.token)
                    accepted += event.origin == "draft"
                same = 0
                while same < len(ours) and ours[same] == text.tokens[at + same]:
                    same += 1
                at += same
                if at < len(text.tokens):
                    found.append((number, at, ours[same]))
                    at += 1
    assert accepted > 100  # trees were verified, and committed
    return found


def not_by_rounding(
    found: list[tuple[int, int, int]], texts: list[OrtText], whole: WholeModel
) -> list[tuple[int, int, int]]:
    """Differences found by `differing` that no rounding explains."""
    wrong = []
    for number, at, token in found:
        text = texts[number]
        rivals = [text.tokens[at], token]
        alone = text.logits[at][rivals]
        read = [*text.prompt, *text.tokens[:at]]
        whole.start()
        together = whole.decode_batch(read)[-1][rivals]
        if alone[0] - alone[1] > 2 * np.abs(alone - together).max():
            wrong.append((number, at, token))
    return wrong


@pytest.mark.slow
def test_the_resident_pair_writes_twenty_texts_of_the_whole_model(
    draft: LanguageModel, texts: list[OrtText], whole: WholeModel
) -> None:
    target = open_resident(TARGET, **SIZES)
    try:
        found = differing(target, draft, texts)
    finally:
        target.close()
    assert not_by_rounding(found, texts, whole) == []


@pytest.mark.slow
def test_the_paged_target_writes_twenty_texts_of_the_whole_model(
    draft: LanguageModel, texts: list[OrtText], whole: WholeModel
) -> None:
    target = open_paged(TARGET, share=0.3, **SIZES)
    try:
        found = differing(target, draft, texts)
        assert target.paging().bytes_read > 0
    finally:
        target.close()
    assert not_by_rounding(found, texts, whole) == []
