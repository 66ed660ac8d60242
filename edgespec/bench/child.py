"""The jobs of a bench, each of which has a process of its own."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil

from edgespec import runtimes
from edgespec.bench import modes
from edgespec.bench.runs import Decode, Decoded, RawRead, Survey, Surveyed
from edgespec.concurrency.owning import close_all
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.paging.reader import READ_BYTES, AlignedMemory, DirectReader, Run
from edgespec.ports.baselines import BaselineRequest, DecodesTogether, OffersBaselines
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec.values import GenerationResult, TextCost, total_sources

FIRST_BYTES, FIRST_S = 64 << 20, 1.0
"""Start of a read loop that is not timed."""
RAW_S = 5.0
"""A slow device has told its speed by then."""
ANY_BUDGET_BYTES = 1 << 50


def decode(job: Decode) -> Decoded:
    """The texts of one run."""
    engine = {mode.name: mode for mode in modes.ENGINE_MODES}.get(job.mode)
    if engine is None:
        return _run_baseline_together(job) if job.together else _run_baseline(job)
    return _run_engine_together(job, engine) if job.together else _run_engine(job, engine)


def _run_engine(job: Decode, mode: modes.Mode) -> Decoded:
    settings = _load_settings(job, job.draft if mode.drafts else None)
    with session.load(settings, mode.engine) as running:
        result = running.generate(job.prompts[0], max_tokens=job.n_tokens)
        guesses = result.speculation
        return Decoded(
            tokens=result.tokens,
            n_prompt_tokens=len(result.prompt_tokens),
            load_s=running.load_report["total"],
            prompt_s=result.timings.prompt_s,
            decode_s=result.timings.decode_s,
            rounds=guesses.round_costs,
            bytes_read=sum(cost.bytes_read for cost in guesses.round_costs),
            peak_bytes=process.peak_rss_bytes(),
            notes=(*running.plan.notes, *result.notes),
            sources=guesses.sources,
        )


def _run_baseline(job: Decode) -> Decoded:
    runtime = runtimes.find(job.model)
    if not isinstance(runtime, OffersBaselines):
        raise UsageError(f"the runtime {runtime.name} has no mode {job.mode}")
    request = BaselineRequest(
        job.model,
        job.draft,
        job.prompts[0],
        job.n_tokens,
        job.ctx_size,
        job.n_threads,
        storage_reads,
    )
    run = runtime.run_baseline(job.mode, request)
    decode_s = sum(cost.wall_s for cost in run.rounds)
    return Decoded(
        tokens=run.tokens,
        n_prompt_tokens=run.n_prompt_tokens,
        load_s=run.load_s,
        prompt_s=run.prompt_s,
        decode_s=decode_s,
        rounds=run.rounds,
        bytes_read=run.bytes_read,
        peak_bytes=process.peak_rss_bytes(),
    )


def _run_engine_together(job: Decode, mode: modes.Mode) -> Decoded:
    settings = _load_settings(job, job.draft if mode.drafts else None, len(job.prompts))
    with session.load(settings, mode.engine) as running:
        before, began = running.paging, time.perf_counter()

        def generate(prompt: str) -> tuple[GenerationResult, float]:
            result = running.generate(prompt, max_tokens=job.n_tokens)
            return result, time.perf_counter() - began

        with ThreadPoolExecutor(len(job.prompts)) as pool:
            timed = list(pool.map(generate, job.prompts))
        wall_s, paging = time.perf_counter() - began, running.paging.since(before)
        results = [result for result, _ in timed]
        rounds = [cost for result in results for cost in result.speculation.round_costs]
        return Decoded(
            tokens=tuple(token for result in results for token in result.tokens),
            n_prompt_tokens=sum(len(result.prompt_tokens) for result in results),
            load_s=running.load_report["total"],
            prompt_s=max(result.timings.prompt_s for result in results),
            decode_s=wall_s,
            rounds=tuple(rounds),
            bytes_read=paging.bytes_read,
            peak_bytes=process.peak_rss_bytes(),
            notes=tuple(dict.fromkeys(n for result in results for n in result.notes)),
            sources=total_sources(result.speculation.sources for result in results),
            texts=tuple(TextCost(len(result.tokens), seconds) for result, seconds in timed),
            n_passes=paging.passes or max(r.speculation.target_passes for r in results),
        )


def _run_baseline_together(job: Decode) -> Decoded:
    runtime = runtimes.find(job.model)
    if not isinstance(runtime, DecodesTogether):
        raise UsageError(f"the runtime {runtime.name} decodes one text at a time in {job.mode}")
    request = BaselineRequest(
        job.model, None, "", job.n_tokens, job.ctx_size, job.n_threads, storage_reads
    )
    run = runtime.run_together(job.mode, request, job.prompts)
    tokens = tuple(token for text in run.texts for token in text)
    return Decoded(
        tokens=tokens,
        n_prompt_tokens=run.n_prompt_tokens,
        load_s=run.load_s,
        prompt_s=0.0,
        decode_s=run.wall_s,
        rounds=run.rounds,
        bytes_read=run.bytes_read,
        peak_bytes=process.peak_rss_bytes(),
        texts=run.costs,
    )


def read_raw(path: Path, nbytes: int) -> RawRead:
    """Time direct reads of READ_BYTES, one after the other, thrown away, until there are `nbytes`.

    A limit lets the first megabytes through faster: they are not timed, and a small file is read
    again and again.
    """
    with closing(_reads(path)) as reads:
        _read_for(reads, FIRST_BYTES, FIRST_S)
        began = time.perf_counter()
        done = _read_for(reads, nbytes, RAW_S)
        return RawRead(done, time.perf_counter() - began)


def _read_for(reads: Iterator[int], nbytes: int, seconds: float) -> int:
    """Read until so many bytes or seconds have gone by; the bytes."""
    done, began = 0, time.perf_counter()
    while done < nbytes and time.perf_counter() - began < seconds:
        done += next(reads)
    return done


def _reads(path: Path) -> Generator[int, None, None]:
    """Read a file over and over; yields the bytes of each read."""
    size, at = path.stat().st_size, 0
    block, reader = AlignedMemory(READ_BYTES), DirectReader([path])
    try:
        while True:
            # the last block may lie half past the file's end
            run = Run(0, at, READ_BYTES, min(READ_BYTES, size - at), 0)
            n = reader.read(run, block.view(0, READ_BYTES), lambda: False)
            at = (at + n) % size
            yield n
    finally:
        close_all(reader.close, block.close)


def survey(job: Survey) -> Surveyed:
    """Memory that the models take. Raises what planning raises."""
    settings = _load_settings(job, job.draft, job.n_texts)
    resident = settings.model_copy(update={"draft": None, "memory_budget": ANY_BUDGET_BYTES})
    planned = session.plan(settings)  # refuses a budget that cannot work
    is_left_out = job.draft is not None and not planned.has_draft
    obstacle = "; ".join(planned.notes) if is_left_out else ""
    return Surveyed(session.plan(resident).planned_bytes, obstacle)


def _load_settings(job: Decode | Survey, draft: Path | None, n_texts: int = 1) -> LoadSettings:
    return LoadSettings(
        model=job.model,
        draft=draft,
        memory_budget="auto" if job.budget_bytes is None else job.budget_bytes,
        ctx_size=job.ctx_size,
        threads=job.n_threads,
        n_parallel=n_texts,
    )


def storage_reads() -> int:
    """Bytes that this process has had read from storage; 0 where the OS does not count them."""
    counters = getattr(psutil.Process(), "io_counters", None)
    return int(counters().read_bytes) if counters else 0
