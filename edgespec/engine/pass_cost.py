"""What a pass of the target costs, by its number of nodes: learnt from passes that were measured.

A value: it reads no clock, and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.drafting.remembering import Numbers
from edgespec.values import PassReport

LONGEST_S, MOST_NODES = 1e4, 1e4
"""What is remembered as more makes no sense."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a pass by its number of nodes: what its reads take, or its computing if longer.

    What reads take is what the store measured, at most: beside computing on the same cores they
    take longer, so only a pass that waited for them shows that they do now. Where nobody measures,
    a pass that waited for a good part of its time was as long as its reads, and none takes less: a
    pass that computed all the time waits a little, too, and would make its own nodes seem free.

    Computing several nodes is a line over their number: least squares, old passes fading. A single
    node lies far below that line where kernels for one row are faster than those for several. What
    no passes of different size have shown yet is guessed in favour of the size that was not tried.

    Of a mixture, nodes choose experts that have to be read for them, which nothing hides. The more
    nodes, the more experts, but nodes choose alike: that time follows the share of all experts that
    so many nodes choose, and a further node costs less and less.
    """

    stalled_share: ClassVar[float] = 0.25
    """A pass that waited for storage for less of its time tells only what reads take at most."""
    idle_share: ClassVar[float] = 0.05
    """In a pass that waited for less of its time, reads took their time beside computing: measured
    ones are shorter in a pass of fewer nodes, and these would seem to be free."""
    guessed_slope: ClassVar[float] = 0.25
    """Of a pass: what a node is taken to cost at most until passes of different size were seen."""
    ridge: ClassVar[float] = 0.05
    fade: ClassVar[float] = 0.9
    fade_of_reads: ClassVar[float] = 0.7
    """A disk's speed changes, and every pass shows it."""
    shortest_prompt: ClassVar[int] = 8
    """Fewer tokens say little of what one of many costs."""

    horizons: ClassVar[tuple[int, ...]] = (1, 4, 16)

    passes_recalled: ClassVar[float] = 3.0
    """So many count what another run saw."""

    used_share: float = 1.0
    """Of a mixture's experts, what one node uses."""
    all_experts_s: float = 0.0
    """What a pass would wait for experts if its nodes chose all of them."""
    read_s: float = 0.0
    """What a pass takes at least, since its reads do."""
    prompt_token_s: float = 0.0
    """What computing a token of a prompt took: the first guess of a node's; 0 before one was seen.
    """
    single_s: float = 0.0
    """One node, its experts read; 0 before it was seen."""
    weight: float = 0.0
    nodes: float = 0.0
    compute_s: float = 0.0
    nodes_squared: float = 0.0
    nodes_compute_s: float = 0.0
    """Fading sums over passes of several nodes."""

    def numbers(self) -> Numbers:
        """The line, and how far it is to be trusted: what `recalled` understands."""
        if not self.weight:
            return {"single_s": self.single_s}
        mean_nodes, mean_s = self.nodes / self.weight, self.compute_s / self.weight
        return {
            "single_s": self.single_s,
            "all_experts_s": self.all_experts_s,
            "nodes": mean_nodes,
            "spread": math.sqrt(max(0.0, self.nodes_squared / self.weight - mean_nodes**2)),
            "several_s": mean_s,
            "per_node_s": self.per_node_s,
        }

    def recalled(self, numbers: Numbers) -> PassCost:
        """With the line of another run, to count for a few passes. What makes no sense is not."""
        single_s = within(numbers.get("single_s", 0.0), 0.0, LONGEST_S)
        known = replace(self, single_s=self.single_s or single_s)
        nodes = numbers.get("nodes", 0.0)
        mean_s = numbers.get("several_s", 0.0)
        if self.weight or not 1 <= nodes <= MOST_NODES or not 0 < mean_s <= LONGEST_S:
            return known
        variance = within(numbers.get("spread", 0.0), 0.0, nodes) ** 2
        slope_s = within(numbers.get("per_node_s", 0.0), 0.0, mean_s / nodes)
        weight = self.passes_recalled
        return replace(
            known,
            all_experts_s=within(numbers.get("all_experts_s", 0.0), 0.0, LONGEST_S),
            weight=weight,
            nodes=weight * nodes,
            compute_s=weight * mean_s,
            nodes_squared=weight * (variance + nodes**2),
            nodes_compute_s=weight * (slope_s * variance + nodes * mean_s),
        )

    @property
    def is_known(self) -> bool:
        return self.weight > 0 or self.single_s > 0 or self.prompt_token_s > 0

    def with_prompt(self, report: PassReport) -> PassCost:
        """After a prompt was read."""
        if report.n_tokens < self.shortest_prompt:
            return self
        token_s = max(0.0, report.wall_s - report.stall_s) / report.n_tokens
        return replace(
            self, prompt_token_s=token_s, read_s=self.read_s or report.read_s / report.passes
        )

    def with_pass(
        self,
        n_nodes: int,
        wall_s: float,
        idle_s: float,
        choice_s: float = 0.0,
        read_s: float = 0.0,
    ) -> PassCost:
        """After a pass that waited `idle_s` for what every pass reads, which took the store
        `read_s` if it measures that, and `choice_s` for experts that its nodes chose."""
        compute_s = wall_s - idle_s
        after = replace(self, read_s=self._read_s(wall_s, idle_s, read_s))
        after = replace(after, all_experts_s=self._all_experts_s(n_nodes, choice_s))
        if n_nodes == 1:
            before_s = self.single_s or compute_s
            return replace(after, single_s=self.fade * before_s + (1 - self.fade) * compute_s)
        compute_s -= choice_s
        return replace(
            after,
            weight=self.fade * self.weight + 1,
            nodes=self.fade * self.nodes + n_nodes,
            compute_s=self.fade * self.compute_s + compute_s,
            nodes_squared=self.fade * self.nodes_squared + n_nodes * n_nodes,
            nodes_compute_s=self.fade * self.nodes_compute_s + n_nodes * compute_s,
        )

    def seconds(self, n_nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """What passes over these numbers of nodes take; 0 before the first one was seen."""
        several_s = self.drafted_s(n_nodes)
        if not self.single_s:
            return several_s
        return np.where(n_nodes == 1, max(self.read_s, self.single_s), several_s)

    def drafted_s(self, n_nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """What they take on the line of passes that verify guesses."""
        if self.weight:
            mean_nodes, mean_s = self.nodes / self.weight, self.compute_s / self.weight
        else:
            mean_nodes, mean_s = 1.0, self._single_compute_s or self.prompt_token_s
        slope_s = np.where(n_nodes < mean_nodes, self._slope_s(self._share_s), self.per_node_s)
        line = mean_s + slope_s * (n_nodes - mean_nodes)
        if self.used_share < 1:
            line += self.all_experts_s * self._chosen(n_nodes)
        return np.asarray(np.maximum(line, self.read_s), np.float64)

    def added_s(self, n_nodes: int) -> float:
        """What a further node costs a pass over so many, if others follow that make it cheaper."""
        further = np.array(self.horizons if self.used_share < 1 else self.horizons[:1])
        seconds = self.drafted_s(np.append(n_nodes, n_nodes + further))
        return float(((seconds[1:] - seconds[0]) / further).min())

    @property
    def n_hidden(self) -> int:
        """Nodes that a pass computes while it reads."""
        if not self.weight or not self.read_s:
            return 0
        mean_nodes, mean_s = self.nodes / self.weight, self.compute_s / self.weight
        return int(mean_nodes + (self.read_s - mean_s) / max(self.per_node_s, 1e-9))

    @property
    def _single_compute_s(self) -> float:
        return max(0.0, self.single_s - self.all_experts_s * float(self._chosen(np.ones(1))[0]))

    def _chosen(self, n_nodes: NDArray[Any]) -> NDArray[np.float64]:
        """The share of a layer's experts that so many neighbouring nodes choose together: that of
        n^(3/4) independent ones (see `memory.experts`)."""
        return np.asarray(1 - (1 - self.used_share) ** (n_nodes**0.75), np.float64)

    def _all_experts_s(self, n_nodes: int, choice_s: float) -> float:
        if self.used_share == 1 or (n_nodes == 1 and self.weight):
            return self.all_experts_s
        found_s = choice_s / float(self._chosen(np.array([n_nodes]))[0])
        if not self.weight:
            return found_s
        return self.fade * self.all_experts_s + (1 - self.fade) * found_s

    @property
    def per_node_s(self) -> float:
        """What a node more than in passes of late costs."""
        if not self.weight:
            return self.prompt_token_s or self.guessed_slope * self._single_compute_s
        mean_s = self.compute_s / self.weight
        guess_s = self.prompt_token_s or self.guessed_slope * (self._single_compute_s or mean_s)
        return self._slope_s(min(self._share_s, guess_s))

    @property
    def _share_s(self) -> float:
        """A node's of passes of late: no line's slope is steeper."""
        return self.compute_s / self.nodes if self.nodes else 0.0

    def _read_s(self, wall_s: float, idle_s: float, measured_s: float) -> float:
        if measured_s > 0:
            before_s = self.read_s or measured_s
            after_s = self.fade_of_reads * before_s + (1 - self.fade_of_reads) * measured_s
            return after_s if idle_s > self.idle_share * wall_s else min(before_s, after_s)
        waited = idle_s > self.stalled_share * wall_s
        return wall_s if waited else min(self.read_s, wall_s)

    def _slope_s(self, guess_s: float) -> float:
        """The line's slope. While passes are of one size it is a guess, and the more they differ
        the less the guess counts (ridge regression)."""
        if not self.weight:
            return guess_s
        mean_nodes, mean_s = self.nodes / self.weight, self.compute_s / self.weight
        variance = self.nodes_squared / self.weight - mean_nodes**2
        covariance = self.nodes_compute_s / self.weight - mean_nodes * mean_s
        slope = (covariance + self.ridge * guess_s) / (variance + self.ridge)
        return min(max(slope, 0.0), self._share_s)


def within(value: float, least: float, most: float) -> float:
    """What was remembered, if it can be."""
    return min(max(value, least), most)
