"""A device that computes by formula, whose best settings are therefore known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.memory.budget import MemoryPlan, SegmentSize
from edgespec.tuning.cost_model import Choice, Prediction, Speeds, draft_alone, predict
from edgespec.tuning.measurements import (
    ModelGpu,
    PassTiming,
    ReadSpeed,
    Refused,
    Replayed,
    Text,
    TreeYield,
    Trust,
    Written,
)
from edgespec.tuning.measuring import Wanted
from edgespec.tuning.offloads import Offload
from edgespec.values import RoundCost
from edgespec_runtimes.gguf.options import GgufOptions

MIB = 1 << 20
DRAFT, BETTER = Path("draft.gguf"), Path("better.gguf")
SIZES = (1, 4, 8, 16, 32, 48, 64, 96)


def wanted(*drafts: Path, settled: Sequence[str] = (), **load: object) -> Wanted:
    settings = {"model": "big.gguf", "memory_budget": 100 * MIB, "draft": (*drafts, None)[0]}
    return Wanted(
        LoadSettings.model_validate(settings | load),
        EngineSettings(),
        drafts,
        usual_threads=4,
        settled=frozenset(settled),
    )


@dataclass
class SyntheticLab:
    """Computing is a line over nodes, divided among threads; a draft's guess is right with `alpha`;
    every node of a pass takes a MiB of buffers, a draft takes some too."""

    disk_bytes_per_s: float = 100 * MIB
    alphas: dict[Path, float] = field(default_factory=lambda: {DRAFT: 0.7, BETTER: 0.85})
    node_s: float = 0.01
    lookup_alpha: float = 0.0
    """Of guesses from the text alone, which cost nothing; 0: there are none."""
    step_s: float = 0.001
    contention: float = 0.0
    """Seconds that each thread costs a pass: above some number of threads, fewer are faster."""
    node_bytes: int = MIB
    draft_bytes: int = 5 * MIB
    weights: int = 150
    """MiB."""
    batch_above: int = 1000
    """From so many guesses on, a prompt is read in other batches."""
    gpu_step_s: float | None = None
    """Of the draft on a GPU; None where there is no GPU."""
    gpu_layers: int = 25
    """That fit on it; more are an error."""
    gpu_bytes: int = 0
    """What its library takes of the process's memory."""
    noise: Sequence[float] = (1.0,)
    others: Sequence[float] = (0.0,)
    """Shares of the cores that other processes take, run by run."""
    run_s: float = 0.0
    """That a run takes of the time that is left."""
    left_s: float = 100.0
    written: list[Choice] = field(default_factory=list)

    def plans(
        self, asked: Sequence[tuple[LoadSettings, EngineSettings]], most_s: float | None = None
    ) -> list[MemoryPlan | Refused]:
        return [self._plan(load, engine) for load, engine in asked]

    def read_speeds(self) -> Sequence[ReadSpeed]:
        return [ReadSpeed(4 * MIB, 1, self.disk_bytes_per_s)]

    def gpus(self, models: Sequence[Path]) -> Sequence[ModelGpu]:
        if self.gpu_step_s is None:
            return []
        return [ModelGpu(model, "gguf", "a GPU", 24, MIB, 1e9) for model in models]

    def write(
        self,
        load: LoadSettings,
        engine: EngineSettings,
        n_tokens: int,
        pass_sizes: tuple[int, ...] = (),
        most_s: float | None = None,
        n_texts: int | None = None,
    ) -> Written:
        choice = Choice(
            load.draft, load.threads or 1, load.threads_draft, _pinned(engine), engine.overlap,
            engine.lookup, offload=_offload_of(load),
        )  # fmt: skip
        self.written.append(choice)
        self.left_s -= self.run_s
        others = self.others[len(self.written) % len(self.others)]
        true = self.truth(choice, load)
        factor = self.noise[len(self.written) % len(self.noise)] * (1 - others)
        round_s = true.tokens_per_pass / true.tokens_per_s / factor
        pass_s = round_s - true.draft_s
        few = int(true.tokens_per_pass)
        costs = [
            RoundCost(n, n - 1, true.n_nodes, 1, true.draft_s, pass_s, 0.0, round_s)
            for n in (few, few + 1)
        ]
        n_rounds = 100
        n = round(n_rounds * true.tokens_per_pass)
        plan = self._plan(load, engine)
        assert isinstance(plan, MemoryPlan)
        return Written(
            texts=(Text((1,), tuple(range(n)), n_rounds * round_s),),
            rounds=_mixed(costs, true.tokens_per_pass, n_rounds),
            load_s=0.0,
            peak_bytes=plan.planned_bytes + (self.gpu_bytes if self._uses_gpu(load) else 0),
            bytes_per_pass=plan.bytes_per_pass,
            passes=tuple(self._pass(choice, n_nodes, plan) for n_nodes in pass_sizes),
            lookups=self._lookups() if pass_sizes else (),
            others=others,
        )

    def replay(self, load: LoadSettings, texts: tuple[Text, ...]) -> Replayed:
        alpha, step_s = self.alphas[load.model], self.step_s * 4 / (load.threads or 1)
        if self._uses_gpu(load):
            step_s = self.gpu_step_s or step_s
        trees = tuple(TreeYield(n, 1 + _stands(alpha, n), n * step_s) for n in SIZES)
        return Replayed(trees, (Trust(0.5, 100, int(100 * alpha)),), 0)

    def truth(self, choice: Choice, load: LoadSettings | None = None) -> Prediction:
        """What really happens with this choice."""
        load = choice.load(load or wanted(DRAFT).load)
        plan = self._plan(load, choice.engine)
        assert isinstance(plan, MemoryPlan)
        share = GgufOptions.of(load.options.get("gguf")).n_gpu_layers / 25
        sizes = (1, 4, 16, 49, 97)
        speeds = Speeds(
            self.disk_bytes_per_s,
            {
                choice.threads: tuple(
                    (n, (1 - 0.9 * share) * self._compute_s(choice.threads, n)) for n in sizes
                )
            },
            {
                (draft, threads): self.replay(LoadSettings(model=draft, threads=threads), ()).trees
                for draft in self.alphas
                for threads in (1, 2, 4)
            },
            lookups=self._lookups(),
        )
        if choice.draft is not None and choice.offload is not None:
            alone = draft_alone(load, choice.draft, choice.threads)
            on_gpu = {(choice.draft, choice.offload): self.replay(alone, ()).trees}
            speeds = replace(speeds, offloaded=on_gpu)
        return predict(choice, plan, speeds)

    def _uses_gpu(self, load: LoadSettings) -> bool:
        """Raises ModelError for more layers than fit."""
        options = GgufOptions.of(load.options.get("gguf"))
        n_layers = max(options.n_gpu_layers, options.n_gpu_layers_draft)
        if n_layers > self.gpu_layers:
            raise ModelError("the GPU is full")
        return n_layers > 0

    def _plan(self, load: LoadSettings, engine: EngineSettings) -> MemoryPlan | Refused:
        """A budget pins what buffers and the draft leave of it, in MiB."""
        drafting = load.draft is not None
        taken = self.node_bytes * (engine.draft_max if drafting or engine.lookup else 0)
        taken += self.draft_bytes if drafting else 0
        room = int(load.memory_budget) - taken
        if room < 0:
            return Refused("too small", taken)
        segments = tuple(SegmentSize(f"{n}", MIB, MIB) for n in range(self.weights))
        pinned = frozenset(range(min(room // MIB, self.weights)))
        batch = 256 if engine.draft_max >= self.batch_above else 128
        return MemoryPlan(
            int(load.memory_budget),
            (),
            segments,
            pinned,
            0,
            True,
            taken,
            batch_size=batch,
            max_nodes=1 + engine.draft_max,
        )

    def _lookups(self) -> tuple[TreeYield, ...]:
        if not self.lookup_alpha:
            return ()
        return tuple(TreeYield(n, 1 + _stands(self.lookup_alpha, n), 0.0) for n in SIZES)

    def _pass(self, choice: Choice, n_nodes: int, plan: MemoryPlan) -> PassTiming:
        compute_s = self._compute_s(choice.threads, n_nodes)
        wall_s = max(compute_s, plan.bytes_per_pass / self.disk_bytes_per_s)
        return PassTiming(n_nodes, wall_s, wall_s - compute_s, plan.bytes_per_pass)

    def _compute_s(self, threads: int, n_nodes: int) -> float:
        return self.node_s * (1 + n_nodes) * 4 / threads + self.contention * threads


def _pinned(engine: EngineSettings) -> int | None:
    """This device plans trees of the usual size."""
    return engine.draft_max if engine.pins_draft_max else None


def _offload_of(load: LoadSettings) -> Offload | None:
    """Of the draft."""
    n_layers = GgufOptions.of(load.options.get("gguf")).n_gpu_layers_draft
    if not n_layers:
        return None
    return Offload(f"-ngld {n_layers}", (("n_gpu_layers_draft", n_layers),))


def _stands(alpha: float, n_nodes: int) -> float:
    """A line's guesses that stand, and a little more for each further branch."""
    return sum(alpha**depth for depth in range(1, n_nodes + 1))


def _mixed(costs: Sequence[RoundCost], mean_tokens: float, n_rounds: int) -> tuple[RoundCost, ...]:
    """Rounds with as many tokens on average."""
    fewer, more = costs
    n_more = round(n_rounds * (mean_tokens - fewer.n_tokens))
    return (more,) * n_more + (fewer,) * (n_rounds - n_more)
