r"""Prints tokens a second of requests at once: `edgespec serve` beside llama.cpp's server, in the
same control group, by disk bandwidth.

    sudo .venv/bin/python tests/measure.py servers -m TARGET -md DRAFT --memory 515MiB \
        --llama-server PATH -n 24 64 --minutes 20 [--clients 16] [--json FILE]

Clients send prompts to /v1/completions all at once, greedily, after one short request. One text at
a time is the same texts, one after the other: some are far easier to guess than others. Without a
draft it is two of them, all of which take as long. Each run is a server of its own over cold files;
the runs of a bandwidth and a length take turns, so that each server sees the same minutes, until
there are `--runs` of each or the time is over. edgespec's budget is the group's limit, less what a
bench leaves to the group.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from edgespec.cli.commands.bench import BUDGET_SHARE
from edgespec.cli.invocation import read_prompts
from edgespec.jobs import limits
from edgespec.jobs.launching import drop_cache
from edgespec.models.embedded import models_folder
from edgespec.settings.units import format_size, parse_size

START_S, ANSWER_S = 120, 600
WARM_TOKENS = 2


@dataclass(frozen=True)
class Case:
    """A server, its slots, and how many texts are sent to it at once."""

    server: str
    drafts: bool
    n_slots: int
    n_clients: int

    @property
    def name(self) -> str:
        over = f" over {self.n_slots}" if self.n_clients != self.n_slots else ""
        return f"{self.server}{', draft' if self.drafts else ''} x{self.n_clients}{over}"


@dataclass(frozen=True)
class ServerRun:
    """Figures of one server."""

    case: str
    tokens_per_s: float
    """Tokens a second of all texts together, prompts included."""
    text_s: tuple[float, ...]
    """Seconds for a token of each text, prompts included."""
    n_tokens: int
    texts: tuple[str, ...]
    peak_bytes: int


def command(case: Case, options: argparse.Namespace, port: int) -> list[str]:
    draft = ["-md", str(options.draft)] if case.drafts else []
    shared = ["-m", str(options.model), *draft, "-np", str(case.n_slots), "--port", str(port)]
    shared += ["-t", str(options.threads)]
    if case.server == "edgespec":
        budget = f"{int(BUDGET_SHARE * options.memory)}B"
        shared += [] if draft else ["--no-draft"]
        edgespec = [sys.executable, "-m", "edgespec", "serve", "-c", str(options.ctx_size)]
        return [*edgespec, *shared, "--memory-budget", budget, "--quiet"]
    ctx = ["-c", str(case.n_slots * options.ctx_size), "--cache-ram", "0", "--no-warmup"]
    types = ["--spec-type", "draft-simple"] if draft else []
    return [str(options.llama_server), *shared, *ctx, *types]


@dataclass(frozen=True)
class TimedAnswer:
    n_tokens: int
    seconds: float
    text: str


def ask(address: str, prompt: str, n_tokens: int) -> TimedAnswer:
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), headers
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        told = json.load(response)
    seconds = time.monotonic() - began
    return TimedAnswer(told["usage"]["completion_tokens"], seconds, told["choices"][0]["text"])


@contextmanager
def served(case: Case, options: argparse.Namespace, limiter: limits.Limiter) -> Iterator[Any]:
    """The process and the address of a server that is ready."""
    for path in (options.model, options.draft):
        drop_cache(path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with limiter.bind() as prefix, TemporaryFile() as log:
        words = [*prefix, *command(case, options, port)]
        # a session of its own would leave the priority that Linux gives to this one's group
        process = subprocess.Popen(words, stdout=log, stderr=log, process_group=0)
        try:
            address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
            while not _is_ready(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(log.read().decode(errors="replace")[-2000:])
                time.sleep(0.1)
            yield process, address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def run(
    case: Case,
    prompts: Sequence[str],
    n_tokens: int,
    options: argparse.Namespace,
    limiter: limits.Limiter,
) -> ServerRun:
    """The texts of all clients, as many at a time as this case has clients."""
    n_texts = (options.clients or max(options.parallel)) if case.drafts else case.n_clients
    chosen = [*islice(cycle(prompts), max(2, n_texts))]
    with served(case, options, limiter) as (process, address):
        ask(address, "import os", WARM_TOKENS)
        began = time.monotonic()
        with ThreadPoolExecutor(case.n_clients) as pool:
            answers = list(pool.map(lambda prompt: ask(address, prompt, n_tokens), chosen))
        wall_s = time.monotonic() - began
        status = Path(f"/proc/{process.pid}/status").read_text()
    done = sum(answer.n_tokens for answer in answers)
    return ServerRun(
        case.name,
        done / wall_s,
        tuple(answer.seconds / max(1, answer.n_tokens) for answer in answers),
        done,
        tuple(answer.text for answer in answers),
        1024 * int(status.partition("VmHWM:")[2].split()[0]),
    )


def table(runs: Sequence[ServerRun]) -> list[str]:
    """Tokens a second of all texts together: median, least and most; seconds for a token of one."""
    heads = f"{'tokens/s':>9}{'least':>8}{'most':>8}{'runs':>6}{'s a token':>11}{'slowest':>9}"
    lines = [f"{'':32}{heads}{'peak':>11}"]
    for name in dict.fromkeys(one.case for one in runs):
        rates, text_s = _rates(runs, name), _text_s(runs, name)
        peak = format_size(max(one.peak_bytes for one in runs if one.case == name))
        lines.append(
            f"{name:32}{statistics.median(rates):9.2f}{min(rates):8.2f}{max(rates):8.2f}"
            f"{len(rates):6}{statistics.median(text_s):11.3f}{max(text_s):9.3f}{peak:>11}"
        )
    return lines


def ratios(runs: Sequence[ServerRun], cases: Sequence[Case]) -> list[str]:
    """Medians of the most texts at once over those of one text, and of other servers."""
    seen = {one.case for one in runs}
    ours = [case for case in cases if case.server == "edgespec" and case.drafts]
    one, most = ours[0].name, ours[-1].name
    lines = []
    if one != most and {one, most} <= seen:
        lines.append(f"{most} to {one}: {_median_ratio(runs, most, one):.2f} times the tokens/s")
        slower = statistics.median(_text_s(runs, most)) / statistics.median(_text_s(runs, one))
        lines.append(f"one text of {most}: {slower:.2f} times its seconds a token alone")
    for case in cases:
        if case.server != "edgespec" and {most, case.name} <= seen:
            ratio = _median_ratio(runs, most, case.name)
            lines.append(f"{most} to {case.name}: {ratio:.2f} times the tokens/s")
    return lines


def _rates(runs: Sequence[ServerRun], name: str) -> list[float]:
    return [one.tokens_per_s for one in runs if one.case == name]


def _text_s(runs: Sequence[ServerRun], name: str) -> list[float]:
    return [seconds for one in runs if one.case == name for seconds in one.text_s]


def _median_ratio(runs: Sequence[ServerRun], name: str, other: str) -> float:
    return statistics.median(_rates(runs, name)) / statistics.median(_rates(runs, other))


def cases_of(options: argparse.Namespace) -> list[Case]:
    most = max(options.parallel)
    clients = options.clients or most
    chosen = [Case("edgespec", True, n, clients if n == most > 1 else n) for n in options.parallel]
    if options.undrafted:
        chosen += [replace(case, drafts=False) for case in chosen]
    if options.llama_server:
        chosen += [Case("llama-server", drafts, most, clients) for drafts in (True, False)]
    return chosen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llama-server", type=Path, help="without it edgespec alone is measured")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-md", "--draft", type=Path, required=True)
    parser.add_argument("--memory", type=parse_size, required=True, help="limit of the group")
    parser.add_argument("--rates", nargs="+", default=["300M", "unlimited"])
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--clients", type=int, help="texts at once over the most slots")
    parser.add_argument("--undrafted", action="store_true", help="edgespec without a draft, too")
    parser.add_argument("-n", "--tokens", type=int, nargs="+", default=[24])
    parser.add_argument("-c", "--ctx-size", type=int, default=256)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--json", type=Path)


def measure(options: argparse.Namespace) -> None:
    prompts = read_prompts(models_folder() / "held_out_prompts.jsonl")
    cases = cases_of(options)
    found: dict[str, list[ServerRun]] = {}
    last = time.monotonic() + 60 * options.minutes
    sections = [(rate, n_tokens) for rate in options.rates for n_tokens in options.tokens]
    for n_done, (rate, n_tokens) in enumerate(sections):
        read = None if rate == "unlimited" else int(rate.removesuffix("M")) * 10**6
        bound = limits.ProcessLimits(options.memory, read)
        limiter, reasons = limits.find(bound, options.model)
        if limiter is limits.UNLIMITED:
            sys.exit(f"nothing was limited: {'; '.join(reasons)}")
        title = f"reads {rate}, memory {format_size(options.memory)}, {n_tokens} tokens a text"
        runs, now = found.setdefault(title, []), time.monotonic()
        ended = now + max(0.0, last - now) / (len(sections) - n_done)
        longest: dict[str, float] = {}
        for repetition in range(options.runs):
            chosen = [*prompts[repetition:], *prompts[:repetition]]
            shift = repetition % len(cases)
            for case in cases[shift:] + cases[:shift]:
                began = time.monotonic()
                if began + longest.get(case.name, 0.0) > ended and repetition:
                    continue
                runs.append(run(case, chosen, n_tokens, options, limiter))
                longest[case.name] = max(longest.get(case.name, 0.0), time.monotonic() - began)
                print(f"{rate:10} {case.name:32} {runs[-1].tokens_per_s:.2f} tokens/s", flush=True)
                if options.json:
                    shown = {name: [asdict(one) for one in of] for name, of in found.items()}
                    options.json.write_text(json.dumps(shown, indent=1))
        print("\n".join(["", title, *table(runs), *ratios(runs, cases), ""]), flush=True)
