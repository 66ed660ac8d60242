"""Validation of pairs, prompts and requests before a text begins. Knows no tree."""

from __future__ import annotations

from edgespec.engine.text import Text
from edgespec.engine.transcript import Transcript
from edgespec.errors import ContextOverflow, UsageError
from edgespec.ports import LanguageModel
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import Sampler
from edgespec.values import FinishReason


def obstacle(target: LanguageModel, draft: LanguageModel | None) -> str | None:
    """Reason why this draft cannot serve this target; None if it can."""
    if draft is None:
        return None
    one, other, ending = target.info, draft.info, "the target decodes alone, one token a pass"
    if not (one.verifies_guesses and other.tree_capable):
        held = other if one.verifies_guesses else one
        name = f"{'draft' if held is other else 'target'} {held.name} ({held.architecture})"
        return f"the {name} keeps recurrent state, which cannot drop single tokens: {ending}"
    if other.reads_features and not one.gives_features:
        return f"{one.name} gives no hidden states, from which {other.name} guesses: {ending}"
    return None


def admit(target: LanguageModel, terms: TextRequest) -> Text:
    """Validate a request and prepare it to run on `target`. Raises UsageError if the target cannot
    serve it."""
    info, prompt, max_tokens = target.info, terms.prompt_tokens, terms.max_tokens
    if not prompt:
        raise UsageError("the prompt is empty: give at least one token, such as BOS")
    if len(prompt) > info.n_ctx:
        raise ContextOverflow(info.n_ctx, len(prompt))
    if not 0 <= min(prompt) <= max(prompt) < info.n_vocab:
        raise UsageError(f"prompt tokens must lie between 0 and {info.n_vocab - 1}")
    terms.sampling.check_vocabulary(info.n_vocab)
    if max_tokens is not None and max_tokens < 0:
        raise UsageError(f"max_tokens must be >= 0, not {max_tokens}")
    limit = text_limit(info.n_ctx, len(prompt), max_tokens)
    limit_reason: FinishReason = "length" if limit == max_tokens else "context"
    transcript = Transcript(target.vocabulary, terms.stop, limit, limit_reason, terms.shown)
    sampler = Sampler(terms.sampling, prompt, terms.constraint, terms.n_logprobs)
    text = Text(terms, sampler, transcript)
    for note in terms.notes:
        text.tally.note(note)
    return text


def text_limit(n_ctx: int, n_prompt: int, max_tokens: int | None) -> int:
    """Most tokens of a text, which ends where the context does."""
    # the last token is not evaluated, so it needs no place in the context
    room = max(0, n_ctx - n_prompt + 1)
    return room if max_tokens is None else min(max_tokens, room)
