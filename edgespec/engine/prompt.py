"""Reading of a prompt: what differs from the text before it, and its end with the first token.

Knows the pair and the request; it does not draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.engine.learning import Learning
from edgespec.engine.pair import Pair
from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import common_length
from edgespec.tracing.spans import Track
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport, TokenEvent


def read_prompt(pair: Pair, request: ActiveRequest, learning: Learning) -> None:
    """Commit all but the prompt's last token, reading only the part whose KV the target does not
    hold as it would compute it.

    A rest that fits into one pass is left to `read_tail`. Drafters read the prompt where that pays.
    """
    pair.check_cancelled()
    prompt = list(request.prompt)
    begun = pair.clock()
    if request.terms.keeper is not None:
        request.terms.keeper.before_prompt(prompt, request.tally)
    n_drafted = max(0, len(pair.committed) - learning.planner.account.unread)
    pair.rewind(_reusable(pair, prompt[:-1]))
    reused = len(pair.committed)
    unread = prompt[reused:-1]
    report = None
    if reused and not _is_tiled(pair, prompt[:-1]) and _fits_a_pass(pair, len(unread) + 1):
        unread = []
    if unread:
        pair.prefill(unread, request.terms.progress)
        report = pair.target.last_report
    _draft_reads(pair, request, learning, min(reused, n_drafted), report)
    end = pair.clock()
    request.tally.prompt_s = end - begun
    request.tally.reused_tokens = reused
    request.tally.saved_passes = _n_passes(pair, len(prompt) - 1) - _n_passes(pair, len(unread))
    if request.terms.keeper is not None:
        request.terms.keeper.after_prompt(len(unread), request.tally)
    pair.trace.add(Track.ENGINE, "prompt", begun, end, tokens=len(prompt), reused=reused)


def _draft_reads(
    pair: Pair,
    request: ActiveRequest,
    learning: Learning,
    n_drafted: int,
    report: PassReport | None,
) -> None:
    """Let the drafters, which hold the first `n_drafted` tokens, read the rest if guesses are
    planned."""
    if pair.grower is None:
        return
    learning.begin_text(len(pair.committed) - n_drafted, request.transcript.room, report)
    if learning.planner.plan().guesses:
        pair.grower.prepare(pair.committed, request.prompt[-1])
        begun = pair.clock()
        pair.catch_up(pair.grower)
        learning.see_reading(pair.clock() - begun)


def read_tail(pair: Pair, request: ActiveRequest) -> TokenEvent | None:
    """Read the rest of the prompt, a branch of a tree, in the pass of the first token; None if
    there is no rest.

    The next turn of a conversation costs one pass so, instead of a prefill and one.
    """
    if len(pair.committed) >= len(request.prompt) - 1:
        return None
    begun = pair.clock()
    tail = request.prompt[len(pair.committed) :]
    tree = TokenTree(tail[0], len(tail))
    branch = [ROOT]
    for token in tail[1:]:
        branch.append(tree.add(branch[-1], token, confidence=1.0))
    logits = pair.evaluate(tree, branch)
    token = request.sampler.pick(logits[-1])
    event = request.transcript.take(token, "target", 0, request.sampler.latest_logprobs)
    pair.commit(tree, branch)
    request.tally.read_first_token(pair.clock() - begun)
    return event


def _reusable(pair: Pair, text: Sequence[int]) -> int:
    """Number of leading tokens of `text` whose KV the target holds as reading all of it would
    compute it: a session's past shall not change what is written."""
    info = pair.target.info
    reused = common_length(pair.committed, text)
    if _is_tiled(pair, text):
        reused = min(reused, pair.n_tiled)
        if reused < len(text):
            reused = min(reused, len(text) - info.prompt_tile)
    elif pair.n_tiled:
        reused = 0
    if reused < len(pair.committed) and not info.tree_capable:
        return 0  # recurrent state cannot be rewound by a few tokens
    return reused


def _is_tiled(pair: Pair, text: Sequence[int]) -> bool:
    """True if a prompt is computed otherwise than the tokens generated after it."""
    return 0 < pair.target.info.prompt_tile <= len(text)


def _n_passes(pair: Pair, n_tokens: int) -> int:
    """Passes that read so many tokens of a prompt."""
    return -(-n_tokens // pair.target.info.prompt_batch)


def _fits_a_pass(pair: Pair, n_tokens: int) -> bool:
    """True if one pass can read so many tokens and say what follows them."""
    info = pair.target.info
    return info.tree_capable and n_tokens <= info.max_nodes
