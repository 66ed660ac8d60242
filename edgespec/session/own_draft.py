"""Drafts made from the target itself: chosen for a budget, made, measured and kept in the cache.

`settled` is behind `-md self`, `make` behind `edgespec models draft`. The format is the tool's.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from edgespec import registry
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError, UsageError, marked, setting
from edgespec.files import cache_folder
from edgespec.files.cache_folder import lower_parts
from edgespec.files.json_file import JsonFile
from edgespec.files.sampled import sampled_digest
from edgespec.files.unfinished import scratch_folder
from edgespec.memory import heap, process
from edgespec.memory.budget import MemoryPlan
from edgespec.paging import disk_speed
from edgespec.ports import Progress, Vocabulary
from edgespec.session import session, strategy
from edgespec.session.opening import LoadedModels
from edgespec.session.strategy import Strategy
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_rate, format_size, parse_rate
from edgespec.tools import ModelTool, load_tool

PROMPTS = (
    "import os\nimport sys\n\n\ndef count_lines(folder):\n"
    '    """Count the lines of all Python files below a folder."""\n',
    "User: What should I see in Lisbon in two days?\nAssistant: ",
    "The history of the lighthouse begins long before electric lamps. In the second century",
)
"""Beginnings of code, conversation and prose that the target continues."""
NO_GUESSES = EngineSettings(lookup=False)
"""Settings of the target alone."""
N_TOKENS, N_TOKENS_ALONE = 16, 3
"""Tokens of each text with the draft, and of one text without."""
MIN_MEASURED = 1.0
"""Least measured speedup of a draft that is kept."""
MEASURING_S = 30.0
"""Seconds after which no further text is begun."""
DIGITS = 12
"""Digits of a target's digest in the names of its drafts."""
OTHERWISE = f"name a small model of its family with {setting.draft}, or use {setting.lookup(True)}"
N_CLASSES = 16
"""Budgets that are equal in sixteenths of the target's size share a choice."""
LIKE_DISK = 3.0
"""Ratio within which the speeds of two disks are about the same, as samples of one differ."""


@dataclass(frozen=True, slots=True)
class OwnDraft:
    """A draft that was made from its target for a class of budgets, as measured."""

    kind: str = ""
    """Quantisation of its layers."""
    size_bytes: int = 0
    budget_bytes: int = 0
    tokens_per_pass: float = 0.0
    tokens_per_s: float = 0.0
    alone_tokens_per_s: float = 0.0
    """Tokens per second without a draft under the same budget."""
    disk_bytes_per_s: float = 0.0
    """Speed of the disk then, which decides whether a draft pays."""
    refusal: str = ""
    """Reason why none is kept."""


def settled(
    settings: LoadSettings, progress: Progress | None = None
) -> tuple[LoadSettings, tuple[str, ...]]:
    """The settings with the draft made from the target, or without one and with a note about why
    none would pay. Raises the other errors of `obtain`."""
    try:
        return settings.model_copy(update={"draft": obtain(settings, progress)}), ()
    except NoGain as error:
        return settings.without_draft(), (f"no draft is used: {marked(error)}",)


def obtain(settings: LoadSettings, progress: Progress | None = None) -> Path:
    """Path of the draft made from the target for this budget, from the cache if it is there.

    Raises NoGain if no draft would be faster than none, and the errors of `make`.
    """
    target, progress = settings.model, progress or (lambda what, share: None)
    digest, name = _key(target, settings.memory_budget)
    disk = _disk(target, settings.read_limit)
    mine = _known(digest, disk).get(name, OwnDraft())
    if mine.refusal:
        again = f"`edgespec models draft TARGET OUT` measures again, for {setting.draft}"
        raise NoGain(f"{mine.refusal} (measured before; {again})")
    has_room, path = True, _cache_path(target, digest, mine.kind)
    try:
        if _is_usable(path, settings, progress):
            return path
    except BudgetError:  # another budget of its class may need a smaller one
        has_room = mine.budget_bytes > process.resolve_budget(settings.memory_budget)
    if has_room:
        try:
            cache_folder.make_folder()
            made = make(target, partial(_cache_path, target, digest), settings, progress)
        except NoGain as error:
            if error.is_measured:
                _keep(digest, name, OwnDraft(refusal=marked(error), disk_bytes_per_s=disk))
            raise
        _keep(digest, name, made)
        with suppress(BudgetError):  # making has left this process larger than it was
            if _is_usable(path := _cache_path(target, digest, made.kind), settings, progress):
                return path
    raise NoGain(
        f"the draft made from {target.name} has no room beside what this process holds already: "
        f"raise {setting.memory_budget}, or load it in a process that holds less"
    )


def kept(target: Path, budget: int | str, read_limit: int | str | None = None) -> Path | None:
    """The draft that `obtain` made of the target for such a budget and disk before, if it is still
    there."""
    digest, name = _key(target, budget)
    path = _cache_path(target, digest, _known(digest).get(name, OwnDraft()).kind)
    limit = None if read_limit is None else parse_rate(read_limit)
    return path if path.exists() and name in _known(digest, _disk(target, limit)) else None


def measured(draft: Path) -> OwnDraft | None:
    """Figures of a draft that `obtain` keeps in the cache; None for any other file."""
    kind, digest = ["", *draft.stem.split("-")][-2:]
    return next((one for one in _known(digest).values() if one.kind == kind), None)


def _is_usable(draft: Path, settings: LoadSettings, progress: Progress) -> bool:
    """True if a draft is there, whole and made of this target. Raises BudgetError."""
    with suppress(ModelError):
        if draft.exists():
            session.plan(settings.model_copy(update={"draft": draft}), progress=progress)
            return True
    return False


def make(
    target: Path, place: Callable[[str], Path], settings: LoadSettings, progress: Progress
) -> OwnDraft:
    """Write the draft of `target` with the most expected tokens per second to the `place` for its
    kind, and measure it. One that was interrupted is gone on with, and one that the cache has for
    other budgets is only measured.

    Raises NoGain, and writes nothing, if it would be slower than no draft; BudgetError if none
    fits; ModelError for a target of which none can be made; EdgespecError for a full disk.
    """
    tool = load_tool()
    if not tool.recognises(target):
        raise UsageError(
            f"{target}: drafts are made from GGUF models: name the GGUF twin of this one in "
            "`edgespec models draft`, and use the draft with either"
        )
    tool.check_trimmable(target)
    alone = settings.model_copy(update={"model": target, "draft": None})
    plan = session.plan(alone, NO_GUESSES, progress)
    disk = _disk(target, settings.read_limit)
    chosen = _choose(target, plan, tool, disk)
    assert chosen.sizes
    out = place(chosen.draft)
    is_cached = out.parent == cache_folder.folder() and _is_usable(out, alone, progress)
    with session.open_models(alone, NO_GUESSES) as models:
        progress("counting tokens", 0.0)
        known, n = models.target, chosen.sizes.head_tokens
        token_ids = [] if is_cached else frequent_tokens(known.vocabulary, known.info.n_vocab, n)
        heap.trim_heap()
        alone_tokens_per_s, _ = _measured(models, PROMPTS[:1], N_TOKENS_ALONE, progress)
    with scratch_folder(out.parent, kept_as=out.name) as folder:
        draft = out if is_cached else folder / "draft.gguf"
        if not is_cached:
            tool.trim(target, draft, chosen.draft, token_ids, progress)
        heap.trim_heap()
        with session.open_models(alone.model_copy(update={"draft": draft})) as models:
            tokens_per_s, tokens_per_pass = _measured(models, PROMPTS, N_TOKENS, progress)
        made = OwnDraft(
            kind=chosen.draft,
            size_bytes=sum(one.stat().st_size for one in draft.parent.glob(f"{draft.stem}.*")),
            budget_bytes=plan.budget_bytes,
            tokens_per_pass=tokens_per_pass,
            tokens_per_s=tokens_per_s,
            alone_tokens_per_s=alone_tokens_per_s,
            disk_bytes_per_s=disk,
        )
        if tokens_per_s < MIN_MEASURED * alone_tokens_per_s:
            raise NoGain(
                f"a draft made from {target.name} ({made.kind}) was slower than none under "
                f"{format_size(plan.budget_bytes)}: {made.tokens_per_s:.2f} tokens/s, "
                f"{made.alone_tokens_per_s:.2f} without; it was not kept: raise "
                f"{setting.memory_budget}, or go on with guesses from the text",
                is_measured=True,
            )
        with suppress(FileNotFoundError):  # the draft comes last, which tells that all is there
            lower_parts(draft).replace(lower_parts(out))
        draft.replace(out)
    return made


class NoGain(UsageError):
    """A draft made from the target would not be faster than none, as measured or expected."""

    def __init__(self, message: str, is_measured: bool = False) -> None:
        super().__init__(message)
        self.is_measured = is_measured


def _choose(target: Path, plan: MemoryPlan, tool: ModelTool, disk: float) -> Strategy:
    """The candidate with the most expected tokens per second. Raises BudgetError where the budget
    has no room for it, NoGain if there is none."""
    if not plan.paged:
        raise NoGain(
            f"{target.name} fits into {format_size(plan.budget_bytes)}: a draft made from it would "
            f"hardly be faster than none; {OTHERWISE}"
        )
    sizes = tool.draft_sizes(target)
    if chosen := strategy.own_draft(plan, sizes, disk):
        return chosen
    with_room = replace(plan, budget_bytes=1 << 62)
    smallest = sorted(sizes, key=lambda one: one.weight_bytes)[:1]
    if least := strategy.own_draft(with_room, smallest, disk):
        raise BudgetError(
            f"a draft made from {target.name} takes {format_size(least.draft_bytes)} beside "
            f"{format_size(plan.smallest_bytes)} for the target, more than "
            f"{format_size(plan.budget_bytes)} leave: raise {setting.memory_budget}"
        )
    raise NoGain(
        f"a draft made from {target.name} would be slower than none: this disk reads "
        f"{format_rate(disk)}, for which its steps compute too long; {OTHERWISE}"
    )


def frequent_tokens(vocabulary: Vocabulary, n_vocab: int, n_tokens: int) -> list[int]:
    """Up to `n_tokens` of `n_vocab` tokens, ascending: those that end texts or that a chat template
    writes, the most frequent ones of texts, and the first of the vocabulary.

    The texts are the interpreter's standard library and the descriptions of installed packages:
    code and English, on every machine.
    """
    if n_vocab <= n_tokens:
        return [*range(n_vocab)]
    counts = np.zeros(n_vocab, np.int64)
    modules = Path(sysconfig.get_path("stdlib")).glob("*.py")
    descriptions = Path(sysconfig.get_path("purelib")).glob("*.dist-info/METADATA")
    for path in (*modules, *descriptions):
        text = path.read_text(encoding="utf-8", errors="ignore")
        counts += np.bincount(vocabulary.encode(text), minlength=n_vocab)
    written = vocabulary.chat_format
    spelled = (
        vocabulary.encode(text, add_special=False)
        for text in (*written.control_tokens, *written.added_tokens)
    )
    counts[[*vocabulary.eog_tokens, *(ids[0] for ids in spelled if len(ids) == 1)]] = 1 << 62
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:n_tokens].tolist())


def _measured(
    models: LoadedModels, prompts: Sequence[str], n_tokens: int, progress: Progress
) -> tuple[float, float]:
    """Tokens per second and per round of a pair, or a target alone, while it continues `prompts`
    greedily, without the first token of a text, which may come from its prompt."""
    n_of_rounds, rounds, seconds, began = 0, 0, 0.0, time.monotonic()
    # what it learns about the pair is kept for the first text
    with session.Session(models, EngineSettings(step_aside=False)) as loaded:
        for n, prompt in enumerate(prompts):
            if n and time.monotonic() - began > MEASURING_S:
                break
            progress("measuring", n / len(prompts))
            result = loaded.generate(prompt, max_tokens=n_tokens)
            seconds += result.timings.decode_s
            rounds += result.speculation.rounds
            n_of_rounds += sum(cost.n_tokens for cost in result.speculation.round_costs)
    return n_of_rounds / max(seconds, strategy.MIN_S), n_of_rounds / max(1, rounds)


def _known(digest: str, disk: float | None = None) -> dict[str, OwnDraft]:
    """Drafts of a target by class of budget, as measured with about such a `disk`, in bytes a
    second, or with any; none if the notes are damaged."""
    with suppress(ValidationError):
        known = _KNOWN.validate_python(JsonFile(cache_folder.drafts(), digest).read())
        return {
            name: one
            for name, one in known.items()
            if disk is None or 1 / LIKE_DISK < one.disk_bytes_per_s / disk < LIKE_DISK
        }
    return {}


def _disk(target: Path, limit: int | None) -> float:
    """Bytes per second that the target's disk reads."""
    return disk_speed.bytes_per_second(target, limit=limit) or disk_speed.USUAL_BYTES_PER_S


def _keep(digest: str, name: str, one: OwnDraft) -> None:
    known = _known(digest) | {name: one}
    JsonFile(cache_folder.drafts(), digest).write(_KNOWN.dump_python(known))


_KNOWN = TypeAdapter(dict[str, OwnDraft])


def _cache_path(target: Path, digest: str, kind: str) -> Path:
    return cache_folder.folder() / f"{target.stem}-self-{kind}-{digest}.gguf"


def _key(target: Path, memory_budget: int | str) -> tuple[str, str]:
    """Digest of a target's files, and the class of a budget for it."""
    files = registry.describe(target).files
    size_bytes = sum(path.stat().st_size for path in files)
    budget_bytes = process.resolve_budget(memory_budget)
    share = min(N_CLASSES, N_CLASSES * budget_bytes // max(1, size_bytes))
    return sampled_digest(files, with_times=False)[:DIGITS], f"{share}/{N_CLASSES}"
