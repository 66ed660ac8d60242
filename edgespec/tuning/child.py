"""The process of one measurement: a job comes in on stdin, its answer goes out on stdout.

A fresh interpreter under the budget that is tuned for, so that no measurement takes more memory
than the runs that it speaks of.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from statistics import median

from edgespec import runtimes
from edgespec.bench.messages import answer_one
from edgespec.concurrency.worker import Worker
from edgespec.config import LoadSettings
from edgespec.engine.loop import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, EdgespecError, UsageError
from edgespec.loading import corpus_drafters, open_models, plan
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Memory, Run, block_floor
from edgespec.ports import LanguageModel
from edgespec.tree import ROOT, TokenTree
from edgespec.tuning.measurements import (
    MESSAGES,
    AskGpus,
    GpusFound,
    ModelGpu,
    PassTiming,
    ReadDisk,
    ReadSpeed,
    Refused,
    Replay,
    Replayed,
    Survey,
    Surveyed,
    Text,
    Write,
    Written,
)
from edgespec.tuning.replays import GREEDY, LOOKUP_SIZES, replay_lookups, replay_trees, trust_in
from edgespec.values import GenerationResult

WRITING_SHARE = 0.8
"""Of the time of a job that also times passes."""
LEAST_ROUNDS = 1
"""Of a text. Texts differ more than rounds of one do: without the two that are guessed best of six,
a prediction was 0.82 of what came."""
UNTIMED_S = 0.1
"""At the beginning of reads: what a device or a limit lets through faster than it lasts."""


def main() -> int:
    """Answer one job."""
    return answer_one(MESSAGES, _answer)


def _answer(job: object) -> Surveyed | ReadSpeed | GpusFound | Written | Replayed:
    match job:
        case Survey():
            return surveyed(job)
        case ReadDisk():
            return _read_disk(job)
        case AskGpus():
            return ask_gpus(job)
        case Write():
            return _write(job)
        case Replay():
            return _replay(job)
    raise UsageError(f"{type(job).__name__} is no job")


def surveyed(job: Survey) -> Surveyed:
    begun = time.monotonic()
    plans: list[MemoryPlan | Refused] = []
    for load, engine in job.asked:
        is_late = job.seconds is not None and time.monotonic() - begun > job.seconds
        late = Refused("there was no time to plan it", 0)
        plans.append(late if plans and is_late else _planned(load, engine))
    return Surveyed(tuple(plans), without_gpu(load for load, _ in job.asked))


def _planned(load: LoadSettings, engine: EngineSettings) -> MemoryPlan | Refused:
    try:
        return plan(load, engine)
    except BudgetError as error:
        return Refused(str(error), error.smallest_bytes or 0)


def without_gpu(loads: Iterable[LoadSettings]) -> tuple[Path, ...]:
    """Models that no GPU could compute. Their libraries are here by now, and say it at once."""
    found = []
    for path in dict.fromkeys(path for load in loads for path in (load.model, load.draft) if path):
        with suppress(EdgespecError):  # whoever has to know asks in a process of its own
            runtime = runtimes.find(path)
            if not isinstance(runtime, runtimes.OffersGpu) or runtime.gpu() is None:
                found.append(path)
    return tuple(found)


def _read_disk(job: ReadDisk) -> ReadSpeed:
    """Reads spread over the file, each of `n_parallel` threads in a part of its own."""
    size = job.path.stat().st_size
    places = max(1, (size - BLOCK_BYTES) // job.read_bytes)
    begun = time.perf_counter()
    timed_from = begun + UNTIMED_S
    until = timed_from + job.seconds
    with closing(Memory(job.n_parallel * job.read_bytes)) as memory:

        def read(part: int) -> int:
            done, at = 0, part * places // job.n_parallel
            view = memory.view(part * job.read_bytes, job.read_bytes)
            with closing(DirectReader([job.path])) as reader, view:
                while (now := time.perf_counter()) < until:
                    run = Run(0, block_floor(at * job.read_bytes), job.read_bytes, 0, 0)
                    n = reader.read(run, view, lambda: False)
                    done += n if now >= timed_from else 0
                    at = (at + 7) % places
            return done

        with ThreadPoolExecutor(job.n_parallel) as pool:
            done = sum(pool.map(read, range(job.n_parallel)))
        return ReadSpeed(job.read_bytes, job.n_parallel, done / (time.perf_counter() - timed_from))


def ask_gpus(job: AskGpus) -> GpusFound:
    """What the runtimes of the models say, and what copies to their GPUs reach."""
    found: list[ModelGpu] = []
    rates: dict[str, float] = {}
    for path in job.models:
        runtime = runtimes.find(path)
        if not isinstance(runtime, runtimes.OffersGpu) or (gpu := runtime.gpu()) is None:
            continue
        name = runtime.name
        if name not in rates:
            rates[name] = _copy_rate(runtime, job.copy_bytes, job.seconds)
        n_layers = runtimes.describe(path).layers or 0
        found.append(ModelGpu(path, name, gpu, n_layers, job.copy_bytes, rates[name]))
    return GpusFound(tuple(found))


def _copy_rate(runtime: runtimes.OffersGpu, nbytes: int, seconds: float) -> float:
    with runtime.copying(nbytes) as copy:
        copy()  # what is done once is not timed
        n_copies, began = 0, time.perf_counter()
        while not n_copies or time.perf_counter() - began < seconds:
            copy()
            n_copies += 1
        return n_copies * nbytes / max(time.perf_counter() - began, 1e-9)


def _write(job: Write) -> Written:
    with open_models(job.load, job.engine) as models:
        begun = time.monotonic()
        share = WRITING_SHARE if job.pass_sizes else 1.0
        drafters = corpus_drafters(models)
        with Engine(models.target, models.draft, job.engine, drafters=drafters) as engine:
            prompts = [models.target.vocabulary.encode(prompt) for prompt in job.prompts]
            results = write_texts(engine, prompts, job.n_tokens, begun + share * job.seconds)
        texts = [_text(result) for result in results]
        passes = time_passes(models.target, job.pass_sizes, begun + job.seconds)
        lookups = replay_lookups(models.target, texts, LOOKUP_SIZES) if job.pass_sizes else []
        notes = (*models.plan.notes, *(note for result in results for note in result.notes))
        return Written(
            texts=tuple(texts),
            rounds=tuple(cost for found in results for cost in found.speculation.round_costs),
            load_s=models.load_report["total"],
            peak_bytes=process.peak_rss_bytes(),
            bytes_per_pass=models.plan.bytes_per_pass,
            passes=tuple(passes),
            lookups=tuple(lookups),
            notes=tuple(dict.fromkeys(notes)),
        )


def _text(result: GenerationResult) -> Text:
    n_decoded = sum(cost.n_tokens for cost in result.speculation.round_costs)
    n_with_prompt = len(result.tokens) - n_decoded
    return Text(result.prompt_tokens, result.tokens, result.timings.decode_s, n_with_prompt)


def write_texts(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[GenerationResult]:
    """Greedy texts, each in its part of the time: they differ in how well they are guessed. Fewer
    prompts are continued where each of them would have no time for LEAST_ROUNDS."""
    results: list[GenerationResult] = []
    for turn, prompt in enumerate(prompts):
        n_texts = len(prompts) - turn
        if results:
            n_texts = min(n_texts, int((deadline - clock()) / _shortest_s(results)))
        if n_texts < 1:
            break
        until = clock() + (deadline - clock()) / n_texts
        results.append(write_until(engine, prompt, n_tokens, until, clock))
    return results


def _shortest_s(results: Sequence[GenerationResult]) -> float:
    """Of a text that says anything, by those that were written."""
    prompt_s = median(result.timings.prompt_s for result in results)
    rounds_s = [cost.wall_s for found in results for cost in found.speculation.round_costs]
    return max(prompt_s + LEAST_ROUNDS * median(rounds_s or [0.0]), 1e-9)


def write_until(
    engine: Engine,
    prompt: Sequence[int],
    n_tokens: int,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> GenerationResult:
    """The greedy text, or what there is of it when the time is over, and a round is done."""
    request = engine.request(prompt, GREEDY, n_tokens)
    with closing(engine.run(request)) as events:
        for _ in events:
            if clock() > deadline and request.tally.outcomes:
                break
    return request.result()


def time_passes(
    target: LanguageModel, sizes: Sequence[int], deadline: float, n_times: int = 2
) -> list[PassTiming]:
    """Passes over a line of each number of nodes that the target takes, in turn, until they are
    done or the time is over; the fewest and the most once at least, which make a line."""
    info = target.info
    most = min(info.max_nodes if info.tree_capable else 1 + info.max_rollback, info.n_ctx)
    numbers = sorted({min(size, most) for size in sizes})
    ends = {*numbers[:1], *numbers[-1:]}
    timings: list[PassTiming] = []
    with Worker() as worker:
        for turn in range(n_times):
            for n_nodes in numbers:
                if (turn or n_nodes not in ends) and time.monotonic() > deadline:
                    continue
                if target.n_committed + n_nodes > info.n_ctx:
                    target.truncate(info.n_ctx - n_nodes)
                tree = TokenTree(ROOT, n_nodes)
                for parent in range(n_nodes - 1):
                    tree.add(parent, parent % info.n_vocab, confidence=1.0)
                worker.run(partial(target.evaluate, tree, range(n_nodes)), target.cancel)
                report = target.last_report
                target.commit(tree, [ROOT])
                timings.append(
                    PassTiming(n_nodes, report.wall_s, report.stall_s, report.bytes_read)
                )
    return timings


def _replay(job: Replay) -> Replayed:
    rules = EngineSettings(draft_max=max(job.tree_sizes), lookup=True)
    with open_models(job.load, rules) as models:
        draft = models.target
        trust = trust_in(draft, job.texts)
        trees = replay_trees(draft, job.texts, job.tree_sizes, job.seconds)
        return Replayed(tuple(trees), tuple(trust), process.peak_rss_bytes())


if __name__ == "__main__":
    sys.exit(main())
