"""Finds a decoder's layers from the structure of its graph.

It follows the residual stream from the embeddings to the logits; names of values are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, Roles
from edgespec_runtimes.onnx.graph.flow import SHAPES, Flow

EXPORT = "export the decoder with Optimum as text-generation-with-past"


@dataclass(frozen=True)
class Stages:
    """The graph divided into stages: 0 precedes the layers, the last one is the head."""

    stage_of: tuple[int | None, ...]
    """Stage of each node; None for nodes without inputs, which belong to every stage that reads
    them."""
    head_input: str
    """The hidden state that the head reads, [batch, tokens, hidden]."""
    head: int
    """Number of the last stage."""


def find_stages(flow: Flow, roles: Roles, where: str) -> Stages:
    """Divide a decoder at its layers.

    The residual stream consists of the nodes on paths from the embeddings to the logits, and its
    bottlenecks are nodes on all of these paths. A layer begins after the last bottleneck before the
    layer's past is read. Raises ModelError if there is none.
    """
    lookups = flow.lookups()
    if not lookups:
        raise ModelError(f"{where} is no decoder: it looks up no embeddings by {IDS}: {EXPORT}")
    roots = [name for i in lookups for name in flow.nodes[i].output if name]
    leading = set(flow.ancestors([LOGITS]))
    stream = sorted((flow.descendants(roots) | set(lookups)) & leading)
    place = {i: k for k, i in enumerate(stream)}
    joins = [
        next((place[i] for i in flow.following(pair) if i in place), len(stream))
        for pair in roles.past
    ]
    narrow = _bottlenecks(flow, stream, place)
    cuts = [max((k for k in narrow if k < join), default=-1) for join in joins]
    if cuts != sorted(set(cuts)) or cuts[0] < 0 or joins[-1] == len(stream):
        raise ModelError(f"{where}: its graph shows no layers with a past each: {EXPORT}")
    cuts.append(_head_cut(flow, stream, narrow, cuts, where))
    stage_of: list[int | None] = [None] * len(flow.nodes)
    for k, i in enumerate(stream):
        stage_of[i] = sum(cut < k for cut in cuts)
    _place_others(flow, stage_of)
    read_by_head = _crossing(flow, stream, cuts[-1])
    if len(read_by_head) != 1:
        raise ModelError(f"{where}: its output head reads more than the hidden state: {EXPORT}")
    return Stages(tuple(stage_of), read_by_head[0], len(cuts))


def _bottlenecks(flow: Flow, stream: Sequence[int], place: Mapping[int, int]) -> list[int]:
    """Indices in `stream` of the nodes that are on every path from its start to its end."""
    narrow, reach = [], 0
    for k, i in enumerate(stream):
        if reach <= k:
            narrow.append(k)
        for name in flow.nodes[i].output:
            for user in flow.consumers.get(name, ()):
                if flow.nodes[user].op_type not in SHAPES:
                    reach = max(reach, place.get(user, 0))
    return narrow


def _head_cut(
    flow: Flow, stream: Sequence[int], narrow: Sequence[int], cuts: Sequence[int], where: str
) -> int:
    """End of the last layer, which has as many bottlenecks as other layers."""
    head = next(
        (
            k
            for k in range(len(stream) - 1, -1, -1)
            if any(_is_weight(flow, name) for name in flow.reads[stream[k]])
        ),
        0,
    )
    inside = [k for k in narrow if cuts[-1] < k < head]
    if not inside:
        raise ModelError(f"{where}: its graph shows no output head after the layers: {EXPORT}")
    if len(cuts) > 1:
        usual = sum(cuts[-2] < k <= cuts[-1] for k in narrow)
        return inside[min(usual, len(inside)) - 1]
    return inside[-1]


def _is_weight(flow: Flow, name: str) -> bool:
    """True for a tensor of the file, or a value computed only from one."""
    while name in flow.producer:
        node = flow.nodes[flow.producer[name]]
        if node.op_type == "Constant" or not node.input:
            return False
        name = node.input[0]
    return name in flow.tensors


def _crossing(flow: Flow, stream: Sequence[int], cut: int) -> list[str]:
    """The values that cross a cut of the residual stream, all computed by one node."""
    later = set(stream[cut + 1 :])
    return [
        name
        for name in flow.nodes[stream[cut]].output
        if not later.isdisjoint(flow.consumers.get(name, ()))
    ]


def _place_others(flow: Flow, stage_of: list[int | None]) -> None:
    """Assign nodes outside the stream to the stage that reads them, or to the earliest possible."""
    earliest: list[int | None] = []
    for i, names in enumerate(flow.reads):
        fixed = stage_of[i]
        known = [0 for name in names if name in flow.inputs]
        for name in names:
            if name in flow.producer:
                before = earliest[flow.producer[name]]
                if before is not None:
                    known.append(before)
        earliest.append(fixed if fixed is not None else max(known, default=None))
    for i in range(len(flow.nodes) - 1, -1, -1):
        if stage_of[i] is not None or earliest[i] is None:
            continue
        users = {
            stage_of[user] for name in flow.nodes[i].output for user in flow.consumers.get(name, ())
        }
        stage_of[i] = users.pop() if len(users) == 1 else earliest[i]
