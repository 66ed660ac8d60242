"""What a pair and a prompt must be before a text can begin. Knows the port; no rule and no tree."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import UsageError
from edgespec.ports import LanguageModel, Vocabulary

PIECE_CHARACTERS = 8
"""Of text for each token that the context holds: more than most tokens have."""


def obstacle(target: LanguageModel, draft: LanguageModel | None) -> str | None:
    """Why this draft cannot serve this target, if so."""
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
    return None


def check_prompt(prompt_tokens: Sequence[int], target: LanguageModel) -> None:
    """Raise UsageError for a prompt that the target cannot read."""
    info = target.info
    if not prompt_tokens:
        raise UsageError("the prompt is empty: give at least one token, such as BOS")
    if len(prompt_tokens) > info.n_ctx:
        raise UsageError(
            f"the prompt has {len(prompt_tokens)} tokens and the context {info.n_ctx}: "
            "shorten the prompt or raise --ctx-size"
        )
    if not 0 <= min(prompt_tokens) <= max(prompt_tokens) < info.n_vocab:
        raise UsageError(f"prompt tokens must lie between 0 and {info.n_vocab - 1}")


def encoded_prompt(text: str, vocabulary: Vocabulary, n_ctx: int) -> list[int]:
    """Token ids of a prompt. Raises UsageError for one that is far longer than the context, after
    reading about as much of it as the context holds.

    No number of bytes can tell: normalisers and unknown characters make few tokens of many. The
    tokens of its beginning can, because a text has no fewer than its beginning, but for those at
    the cut; twice the context's leave no doubt.
    """
    too_many = 2 * max(n_ctx, 64)
    length = PIECE_CHARACTERS * too_many
    while length < len(text):
        if len(vocabulary.encode(text[:length])) > too_many:
            raise UsageError(
                f"the prompt has {len(text):,} characters, and the first {length:,} of them more "
                f"tokens than the context, {n_ctx:,}: shorten the prompt or raise --ctx-size"
            )
        length *= 4
    return vocabulary.encode(text)
