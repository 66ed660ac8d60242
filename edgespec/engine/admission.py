"""Validation of pairs, prompts and requests before a text begins. Knows no tree."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.outcome import Tally
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.source import Source
from edgespec.engine.text import Text
from edgespec.engine.transcript import Transcript
from edgespec.errors import ContextOverflow, UsageError
from edgespec.ports import LanguageModel
from edgespec.ports.text_request import TextRequest
from edgespec.rules.acceptance_rules import AcceptanceRule
from edgespec.rules.sampling import Sampler
from edgespec.settings.rule_names import Keeps
from edgespec.values import FinishReason


def notes_on(
    reason: str | None, acceptance: AcceptanceRule, guesses: bool, n_slots: int = 1
) -> tuple[str, ...]:
    """Notes for every result: the `reason` not to draft, and an acceptance rule that changes the
    text or that uses only one of `n_slots`."""
    notes = [reason] if reason else []
    if guesses and acceptance.keeps is not Keeps.DRAWS:
        notes.append(
            f"with the acceptance rule {acceptance.name} {_CHANGES[acceptance.keeps]}: leave it "
            "out for the target's own text"
        )
    if guesses and n_slots > 1 and acceptance.growth is not None:
        notes.append(
            f"with the acceptance rule {acceptance.name} texts are generated one after the other, "
            f"though there is memory for {n_slots} at once: leave out the one or the other"
        )
    return tuple(notes)


_CHANGES = {
    Keeps.DISTRIBUTION: "a seed gives another text than without a draft, of the same distribution",
    Keeps.NEITHER: "the draft changes the text and its distribution",
}


def check_sources(
    settings: EngineSettings, draft: LanguageModel | None, others: Sequence[Source]
) -> None:
    """Raise UsageError if the acceptance rule needs a draft model's distribution and a source has
    none."""
    if not settings.draws_guesses:
        return
    rule = f"the acceptance rule {settings.acceptance}"
    if others:
        raise UsageError(
            f"{rule} compares probabilities, which guesses of other sources than the draft model "
            "do not have: leave out the rule or the sources"
        )
    if draft is not None and draft.info.reads_features:
        raise UsageError(
            f"{rule} draws guesses from a whole draft model, and {draft.info.name} is a head: "
            "leave out the rule, or name another draft"
        )
    if draft is None:
        raise UsageError(f"{rule} draws guesses from a draft model, and there is none: name one")


def check_rule(rule: AcceptanceRule, terms: TextRequest) -> None:
    """Raise UsageError for a request that the rule cannot serve."""
    if terms.constraint is not None and rule.growth is not None:
        raise UsageError(
            f"the acceptance rule {rule.name} cannot follow a grammar, which the draft's "
            "distribution does not know: leave out the rule or the grammar"
        )
    if terms.n_logprobs is not None and rule.keeps is Keeps.NEITHER:
        raise UsageError(
            f"the acceptance rule {rule.name} takes tokens that the target would not have drawn, "
            "so log probabilities would not be the text's: leave out the rule or logprobs"
        )


def obstacle(target: LanguageModel, draft: LanguageModel | None) -> str | None:
    """Reason why this draft cannot serve this target; None if it can."""
    if draft is None:
        return None
    for role, info, can in (
        ("target", target.info, target.info.verifies_guesses),
        ("draft", draft.info, draft.info.tree_capable),
    ):
        if not can:
            return (
                f"the {role} {info.name} ({info.architecture}) keeps recurrent state, which cannot "
                "drop single tokens: the target decodes alone, one token a pass"
            )
    if draft.info.reads_features and not target.info.gives_features:
        return (
            f"the target {target.info.name} does not give its hidden states, from which the draft "
            f"{draft.info.name} guesses: the target decodes alone, one token a pass"
        )
    return None


def admit(
    target: LanguageModel,
    terms: TextRequest,
    rule: AcceptanceRule | None = None,
    n_keep: int | None = None,
) -> Text:
    """Validate a request and prepare it to run on `target`.

    `rule` is the acceptance rule, None without guesses; a text with `n_keep` goes on when the
    context is full. Raises UsageError if the target or the rule cannot serve the request.
    """
    if rule is not None:
        check_rule(rule, terms)
    prompt, max_tokens = terms.prompt_tokens, terms.max_tokens
    check_prompt(prompt, target)
    terms.sampling.check_vocabulary(target.info.n_vocab)
    if max_tokens is not None and max_tokens < 0:
        raise UsageError(f"max_tokens must be >= 0, not {max_tokens}")
    shifts = n_keep is not None
    limit = text_limit(target.info.n_ctx, len(prompt), max_tokens, shifts)
    is_own = shifts or limit == max_tokens
    limit_reason: FinishReason = "length" if is_own else "context"
    transcript = Transcript(target.vocabulary, terms.stop, limit, limit_reason, terms.shown)
    sampler = Sampler(terms.sampling, prompt, terms.constraint, terms.n_logprobs)
    tally = Tally() if rule is None else Tally(acceptance=rule.name, keeps=rule.keeps)
    for note in terms.notes:
        tally.note(note)
    return Text(terms, sampler, transcript, tally, n_keep)


def text_limit(n_ctx: int, n_prompt: int, max_tokens: int | None, shifts: bool) -> int:
    """Most tokens of a text; `shifts` if it continues past the end of the context, up to
    `max_tokens` or, without it, the size of the context."""
    if shifts:
        return n_ctx if max_tokens is None else max_tokens
    # the last token is not evaluated, so it needs no place in the context
    room = max(0, n_ctx - n_prompt + 1)
    return room if max_tokens is None else min(max_tokens, room)


def check_prompt(prompt_tokens: Sequence[int], target: LanguageModel) -> None:
    """Raise UsageError for a prompt that the target cannot read."""
    info = target.info
    if not prompt_tokens:
        raise UsageError("the prompt is empty: give at least one token, such as BOS")
    if len(prompt_tokens) > info.n_ctx:
        raise ContextOverflow(info.n_ctx, len(prompt_tokens))
    if not 0 <= min(prompt_tokens) <= max(prompt_tokens) < info.n_vocab:
        raise UsageError(f"prompt tokens must lie between 0 and {info.n_vocab - 1}")
