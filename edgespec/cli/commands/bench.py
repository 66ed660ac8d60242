"""`edgespec bench`: chooses models, modes and limits, runs them in turn, and reports.

Measuring, arithmetic and drawing are in `edgespec.bench`.
"""

from __future__ import annotations

import argparse
import platform
from argparse import ArgumentParser
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from edgespec import runtimes
from edgespec.bench import table
from edgespec.bench.bench_report import (
    AppliedLimits,
    BenchReport,
    ModelFile,
    this_machine,
)
from edgespec.bench.bench_runs import (
    Bench,
    Prompt,
    applicable,
    in_parallel,
    named_drafts,
    run_all,
    survey,
)
from edgespec.bench.bench_settings import QUICK, BenchSettings
from edgespec.bench.modes import choose, known_modes, with_drafts
from edgespec.bench.summary import spread, summaries
from edgespec.cli import fetching
from edgespec.cli.commands import demo
from edgespec.cli.console import STDOUT, Console, report_failure, write_json
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import check_output
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import (
    measured_sampling,
    model_path,
    own_draft,
    read_prompts,
    spelled,
)
from edgespec.errors import EdgespecError, UsageError
from edgespec.extras import installed_version
from edgespec.jobs import limits
from edgespec.jobs.limits import Limiter, ProcessLimits
from edgespec.memory import process
from edgespec.models.embedded import shipped_prompts
from edgespec.models.model_files import size_of
from edgespec.ports.baselines import Baselines
from edgespec.settings.base import spell
from edgespec.settings.config import GenerateSettings, LoadSettings
from edgespec.settings.draft_name import OWN_DRAFT, SELF

_DESCRIPTION = """\
Measure ways of decoding on the same models, prompts and limits, and report tokens per second,
memory and reads. Each run is a process of its own, begins with a cold page cache, and the modes
take turns."""

_EPILOG = """\
modes:
  mmap            the model's own library, llama.cpp or onnxruntime, weights mapped from the file
  resident        the same, weights in memory and packed as it likes them best, where they fit
  llama-linear    llama.cpp's linear speculation, both models mapped; -3 with its newer defaults;
                  not for ONNX
  paged           edgespec without a draft
  linear          one branch of a fixed length
  tree-adaptive   LLMCad's tree and threshold
  lookup          no draft model: guesses from the text itself and from the target's own words
  auto            edgespec with its defaults: what a user gets; auto-draft without lookup
and always raw: a plain loop of direct reads.

Each mode runs greedily, and once more as `edgespec chat` samples (--temp), as `auto @0.8`. That
doubles the time; --temp 0 leaves it out, as --quick does. Sampled texts of edgespec's modes are
equal, too; a library draws with random numbers of its own.

Of several drafts (-md A -md B) each runs in every mode that drafts, as a row of its own: `auto A`
is draft A with guesses from the text, `auto-draft A` without them, and `lookup` those guesses
alone. Name the target itself for its own layer (MTP). A draft that cannot guess for the target is
left out, with the reason.

examples:
  edgespec bench --quick
      a first look at this machine, in a minute or two
  sudo edgespec bench --memory 50% --read-limit 300M
      the embedded pair, its target enlarged to 1 GiB, as on a slow device
  edgespec bench -m big.gguf -md small.gguf --memory 4GiB --modes mmap,paged,auto --json a.json
  sudo edgespec bench -m big-onnx -md models/edgespec-draft-onnx-fp16 --read-limit 300M
      an ONNX pair
  sudo edgespec bench --pair smollm2 --prompts models/smollm2/conversation.jsonl
      a real model, enlarged, on conversations (prompts of edgespec's repository)
  sudo edgespec bench -m big.gguf -md small.gguf -md head.gguf --modes paged,lookup,auto-draft,auto
      which draft, alone and with lookups: tokens per pass, tokens/s, to no draft, memory
  sudo edgespec bench --read-limit 300M --modes mmap,auto-draft,auto --repetitions 1
      what guesses bring over mmap, and the free ones over the draft alone
  sudo edgespec bench --read-limit 300M --modes mmap,auto --parallel 1,2,4,8 -n 32
      several texts at once, beside llama.cpp's own batched decoding of as many (one KV cache, no
      draft, as its server's slots)

Limits need the right to make control groups (Linux: root, or a systemd that delegates them). Where
that is not given, the bench says so and nothing but edgespec's own budget is limited."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    models = parser.add_argument_group("models")
    groups.add(models, BenchSettings, "model", "draft", "size", "pair", defaults={"size": "1GiB"})
    limits = parser.add_argument_group("limits of each run's process")
    groups.add(limits, BenchSettings, "memory", "read_limit")
    runs = parser.add_argument_group("runs")
    quick = {
        name: f"{BenchSettings.model_fields[name].default}, with --quick {value}"
        for name, value in QUICK.items()
    } | {"temperature": "what chat uses: the model's own, otherwise 0.8; with --quick 0"}
    names = ("modes", "max_tokens", "baseline_tokens", "n_prompts", "repetitions", "prompts")
    groups.add(runs, BenchSettings, *names, "parallel", "temperature", defaults=quick)
    groups.add(runs, BenchSettings, "ctx_size", "threads")
    groups.flag(runs, "--quick", "few, short runs: a first look")
    output = parser.add_argument_group("output")
    groups.flag(
        output,
        "--json FILE",
        "everything that was measured; without FILE on stdout, the table then on stderr",
        nargs="?",
        const="-",
    )


BUDGET_SHARE = 1 / 1.02
"""Budget of edgespec as a share of the memory limit: a control group also counts memory that
belongs to no process."""
PROMPT_WIDTH = 14
"""Length of a prompt's name in tables."""


def settings_from_flags(args: argparse.Namespace) -> BenchSettings:
    """Flags win over `--quick`, which wins over the defaults. Raises UsageError."""
    known = BenchSettings.model_fields
    settings: dict[str, Any] = dict(QUICK) if "quick" in args else {}
    settings |= {name: value for name, value in vars(args).items() if name in known}
    if "model" in settings:
        settings["model"] = model_path(settings["model"], spell("model"))
    drafts = [
        OWN_DRAFT if draft == SELF else model_path(draft, spell("draft"))
        for draft in settings.get("draft", ())
    ]
    settings["draft"] = tuple(dict.fromkeys(drafts))
    return BenchSettings.model_validate(settings)


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure and report. Raises EdgespecError for failed runs after writing the report."""
    settings, console = settings_from_flags(args), Console()
    json_name: str | None = getattr(args, "json", None)
    if json_name is not None and json_name != STDOUT:
        check_output(Path(json_name))
    report = measure(settings, spelled(args), console)
    lines = "\n".join(table.summary(report).lines(console.width))
    if json_name == STDOUT:
        console.note(lines)
    else:
        console.write("\n" + lines)
    if json_name is not None:
        write_json(json_name, report.as_dict())
    if report.failures:
        error = EdgespecError(f"{len(report.failures)} runs failed: {report.failures[0].reason}")
        if json_name not in (None, STDOUT):  # the file has the report, failures included
            return report_failure(error, str(error), error.exit_code, None)
        raise error
    return 0


def measure(settings: BenchSettings, command: str, console: Console) -> BenchReport:
    """Run the whole bench and return its report."""
    pair = fetching.pair_named(settings.pair, console)
    runtime = runtimes.find(settings.model or pair.target)
    for draft in settings.draft:
        if draft != OWN_DRAFT:
            runtimes.find(draft)
    library = runtime.baselines
    requested_modes = choose(settings.modes, known_modes(library.BASELINES if library else ()))
    prompts = chosen_prompts(settings)
    target, drafts = settings.model, settings.draft
    if target is None:
        target, known = demo.enlarged(pair, settings.size, console)
        drafts = (known,) if known else ()
    elif not drafts and (known := own_draft(target)):
        drafts = (known,)
    drafts = tuple(
        _made_for(target, settings, console) if draft == OWN_DRAFT else draft for draft in drafts
    )
    began = datetime.now().astimezone()
    models_bytes = size_of(target) + max(
        (size_of(draft) for draft in drafts if draft != target), default=0
    )
    process_limits = ProcessLimits(settings.memory_bytes(models_bytes), settings.read_limit)
    limiter = _limiter(process_limits, target, console)
    memory_bytes = process_limits.memory_bytes
    budget = None if memory_bytes is None else int(BUDGET_SHARE * memory_bytes)
    n_threads = settings.threads or process.usable_cores()
    modes = with_drafts(requested_modes, named_drafts(drafts, target, runtime))
    bench = Bench(settings, target, modes, prompts, limiter, budget, n_threads)
    if settings.parallel:
        most = max(settings.parallel)
        bench = replace(bench, modes=[mode.together(most) for mode in modes])
    surveyed = survey(bench, console.progress)
    room_bytes = process.available_bytes() if memory_bytes is None else memory_bytes
    modes, left_out = applicable(modes, surveyed, room_bytes)
    if settings.parallel:
        modes, alone = in_parallel(modes, settings.parallel)
        left_out += alone
    given = {} if settings.temperature is None else {"temperature": settings.temperature}
    sampling = measured_sampling(target, GenerateSettings.model_validate(given))
    temperatures = tuple(dict.fromkeys((0.0, sampling.temperature)))
    modes = [mode.at(temperature) for temperature in temperatures for mode in modes]
    fits = surveyed.resident_bytes <= room_bytes
    bench = replace(bench, modes=modes, fits=fits, sampling=sampling)
    results = run_all(bench, console.note, console.progress)
    if not results.raw:
        raise EdgespecError(f"nothing could be measured: {results.failures[0].reason}")
    raw = spread([read.bytes_per_s for read in results.raw])
    return BenchReport(
        command=command,
        began=began.isoformat(timespec="seconds"),
        versions=_versions(library),
        machine=this_machine(target, n_threads),
        target=_model_file(target),
        drafts=[_model_file(path) for path in bench.drafts],
        limits=AppliedLimits(limiter.name, memory_bytes, settings.read_limit, budget),
        n_tokens=settings.max_tokens,
        n_baseline_tokens=settings.tokens_of(is_slow=not bench.fits),
        n_repetitions=settings.repetitions,
        prompts=[prompt.name for prompt in prompts[: settings.n_prompts]],
        raw_bytes_per_s=raw,
        descriptions={mode.name: mode.description for mode in modes},
        modes=summaries(results.rows, modes, raw.median),
        left_out=left_out,
        failures=results.failures,
        notes=sorted({note for row in results.rows for note in row.decoded.notes}),
        rows=results.rows,
        sampling=sampling.model_dump(exclude={"logit_bias"}) if sampling.temperature else None,
    )


def _made_for(target: Path, settings: BenchSettings, console: Console) -> Path:
    """The draft made from `target` for the limits of `settings`, once: its size counts in none."""
    limit = settings.memory_bytes(size_of(target))
    budget = "auto" if limit is None else int(BUDGET_SHARE * limit)
    given = {"model": target, "memory_budget": budget, "ctx_size": settings.ctx_size}
    load = LoadSettings.model_validate(given | {"draft": OWN_DRAFT})
    return fetching.draft_from_target(load, console)


def chosen_prompts(settings: BenchSettings) -> list[Prompt]:
    """The requested prompts, named by their number and the beginning of their text."""
    path = settings.prompts or shipped_prompts()
    texts = read_prompts(path)
    n_beside = max(settings.parallel or (1,)) - 1
    n_prompts = settings.n_prompts + n_beside
    if len(texts) < n_prompts:
        beside = f", and {n_beside} beside the last for --parallel" if n_beside else ""
        raise UsageError(f"--n-prompts {settings.n_prompts}{beside}: {path} has only {len(texts)}")
    return [_prompt(number, text) for number, text in enumerate(texts[:n_prompts], 1)]


def _limiter(requested_modes: ProcessLimits, target: Path, console: Console) -> Limiter:
    """The first limiter that works here; writes a note if none does."""
    limiter, reasons = limits.find(requested_modes, target)
    if requested_modes and limiter is limits.UNLIMITED:
        why = f"limits cannot be set here ({'; '.join(reasons)})"
        console.note(f"{why}: nothing is limited but edgespec's own reads")
    return limiter


def _prompt(number: int, text: str) -> Prompt:
    first_line = (text.strip() or "blank").splitlines()[0]
    return Prompt(f"{number} {first_line[:PROMPT_WIDTH]}", text)


def _versions(library: Baselines | None) -> dict[str, str]:
    versions = {"edgespec": installed_version(), "Python": platform.python_version()}
    if library:
        name, _, number = library.LIBRARY.rpartition(" ")
        versions[name] = number
    return versions


def _model_file(path: Path) -> ModelFile:
    return ModelFile(path.name, size_of(path))
