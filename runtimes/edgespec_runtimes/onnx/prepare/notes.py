"""Notes for the user on how a decoder is paged, and how it rounds."""

from __future__ import annotations

import onnx

from edgespec.errors import setting
from edgespec_runtimes.onnx.graph.accuracy import rounds_to_eight_bits
from edgespec_runtimes.onnx.graph.flow import BATCH_SCALED, MIXTURES
from edgespec_runtimes.onnx.prepare.fitting import FittedDecoder
from edgespec_runtimes.onnx.prepare.measuring import MeasuredOnnx


def measuring_notes(name: str, measured: MeasuredOnnx) -> list[str]:
    """A note on sizes that could not be measured."""
    if not measured.has_failed:
        return []
    return [
        f"{name}: what onnxruntime takes for its weights could not be measured, and is computed; "
        "it is tried again at the next start, whose plan may differ"
    ]


def paging_notes(name: str, fitted: FittedDecoder) -> list[str]:
    """Notes on a target that cannot be paged, or only as a whole."""
    notes = []
    if unbound := fitted.source.unbound:
        notes.append(
            f"{name} has {' and '.join(unbound)} weights, which onnxruntime takes from "
            "files only: it cannot be paged, and needs all in memory"
        )
    if fitted.has(MIXTURES):
        notes.append(
            f"{name} is a mixture of experts: ONNX models are paged by whole layers, experts that "
            "no token chose included; a GGUF file of it reads far less"
        )
    return notes


def half_precision_notes(name: str, fitted: FittedDecoder) -> list[str]:
    """A note on a paged target that computes in half precision, on CPUs."""
    outputs = (
        value.type.tensor_type.elem_type
        for graph in fitted.cut.graphs
        for value in onnx.load_from_string(graph).graph.output
    )
    if onnx.TensorProto.FLOAT16 not in outputs:
        return []
    return [
        f"{name} is in half precision, which onnxruntime rounds otherwise where weights are paged: "
        "where two tokens are almost equally likely, another may be written than with all weights "
        "in memory"
    ]


def rounding_notes(
    name: str,
    graph: onnx.GraphProto,
    fitted: FittedDecoder,
    writes: bool,
    verifies: bool,
) -> list[str]:
    """Notes on rounding by the rows of a pass: `writes` if the model's text is shown, `verifies` if
    it also verifies guesses."""
    if fitted.has(BATCH_SCALED):
        return [
            f"{name} scales activations over a batch: to keep its text, each token is computed by "
            "itself, and a pass saves reading but no computing"
        ]
    if fitted.hides_nothing:
        return [
            f"{name} holds two decoders, and the one for texts with a past was made for single "
            "tokens: each token is computed by itself, and a pass saves reading but no computing; "
            "an export by a newer Optimum is faster"
        ]
    if writes and rounds_to_eight_bits(graph):
        return [
            f"{name} rounds activations of 4-bit products to eight bits (accuracy level 4), those "
            "of a batch otherwise than those of single tokens, so a draft or an earlier text may "
            f"change the text: {setting.accuracy_level(1)} computes with floats, and takes longer"
        ]
    if not verifies:
        return []
    return [
        f"{name}: onnxruntime rounds several rows otherwise than a single one: where two tokens "
        "are almost equally likely, a draft or an earlier text may change which one is written"
    ]
