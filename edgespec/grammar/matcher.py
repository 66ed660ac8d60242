"""Finds the tokens that a grammar allows or forces next, with llguidance.

Knows a vocabulary, but no model; the sampler calls it before every token of the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import llguidance
import numpy as np
from llguidance import numpy as bitmasks
from numpy.typing import NDArray

from edgespec.errors import GrammarError
from edgespec.grammar.numbers import DigitLimit, leading_digits, longest_run
from edgespec.grammar.schemas import rewritten
from edgespec.grammar.specification import JSON_STYLE, Grammar
from edgespec.ports import Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_LEXER_STATES = 5_000
"""Most lexer states, of 1 to 2 kB each; usual grammars have hundreds."""
_LIMITS = llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES)
_JSON_STYLE = cast("JsonCompileOptions", JSON_STYLE)


class GrammarCompiler:
    """Compiles grammars for the tokens of one vocabulary. Expensive to construct."""

    def __init__(self, vocabulary: Vocabulary, n_logits: int) -> None:
        """Prepare `vocabulary`; `n_logits` is the length of the target's rows, padding included.

        Raises GrammarError for a vocabulary without an end-of-generation token.
        """
        if not vocabulary.eog_tokens:
            raise GrammarError(
                "the model's vocabulary has no end-of-generation token, so that a text could not "
                "end where its grammar does: leave the grammar out, or use another model"
            )
        self.n_logits = n_logits
        self.vocabulary = vocabulary
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=n_logits,
            eos_token=sorted(vocabulary.eog_tokens),
            slices=[],  # they would take 350 more bytes per token and save half a millisecond
        )

    def start(self, grammar: Grammar) -> GrammarState:
        """The grammar's initial state. Raises GrammarError for an invalid grammar.

        It is compiled again on first use, so that waiting requests hold no compiled grammar.
        """
        self.matcher(grammar)
        digits = None
        if grammar.bounds_numbers:
            digits = DigitLimit(self._leading_digits, longest_run(grammar.source))
        return GrammarState(self, grammar, digits)

    @cached_property
    def _leading_digits(self) -> NDArray[np.uint8]:
        pieces = map(self.vocabulary.piece, range(self.vocabulary.n_vocab))
        return leading_digits(pieces, self.n_logits)

    def matcher(self, grammar: Grammar) -> llguidance.LLMatcher:
        """The grammar, compiled. Raises GrammarError."""
        compiled = _compiled(grammar)
        matcher = llguidance.LLMatcher(self._tokens, compiled, log_level=0, limits=_LIMITS)
        if reason := matcher.get_error():
            raise GrammarError(f"the {grammar.kind} is wrong: {_line(reason)}")
        return matcher


class GrammarState:
    """A text's position in its grammar; implements `Constraint` of the sampler."""

    def __init__(
        self, compiler: GrammarCompiler, grammar: Grammar, digits: DigitLimit | None
    ) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._digits = digits
        self._n_logits, self._eog_tokens = compiler.n_logits, compiler.vocabulary.eog_tokens
        self._mask = bitmasks.allocate_token_bitmask(1, self._n_logits)

    @cached_property
    def _matcher(self) -> llguidance.LLMatcher:
        return self._compiler.matcher(self._grammar)

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        """Mask of the tokens that may come next, or after the tokens `ahead`, bool [n_logits].

        None are allowed after tokens that are not themselves. Raises GrammarError if none may come
        next, or if the grammar takes too long.
        """
        if ahead:
            later = self._matcher.deep_copy()
            if later.try_consume_tokens(list(ahead)) < len(ahead) or later.is_error():
                return np.zeros(self._n_logits, bool)
            return self._mask_of(later)
        allowed = self._mask_of(self._matcher)
        self._check()
        if not allowed.any():
            raise GrammarError(f"the {self._grammar.kind} allows no token here: it cannot be met")
        return allowed if self._digits is None else self._digits.shortened(allowed)

    def _mask_of(self, matcher: llguidance.LLMatcher) -> np.ndarray:
        """Mask of the tokens that `matcher` allows, end of text alone where it has stopped."""
        if matcher.is_stopped():
            ended = np.zeros(self._n_logits, bool)
            ended[sorted(self._eog_tokens)] = True
            return ended
        bitmasks.fill_next_token_bitmask(matcher, self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        return bits[: self._n_logits].astype(bool)

    def take(self, token: int) -> None:
        """Advance by the next token of the text. Raises GrammarError."""
        if token in self._eog_tokens and self._matcher.is_stopped():
            return
        self._matcher.consume_token(token)
        self._check()
        if self._digits is not None:
            self._digits.take(self._compiler.vocabulary.piece(token))

    def forced(self, most: int) -> list[int]:
        """At most `most` tokens that must come next, as the tokenizer splits their text."""
        if self._matcher.is_stopped():
            return []
        return self._matcher.compute_ff_tokens()[:most]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(
                f"the {self._grammar.kind} cannot be followed any further: "
                f"{_line(self._matcher.get_error())}"
            )


class _Tokens:
    """A vocabulary in llguidance's interface, which marks control tokens by a byte not in UTF-8."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eog_tokens)
        self.bos_token_id = None
        self.tokens = []
        self.special_token_ids = []
        for token in range(vocabulary.n_vocab):
            piece = vocabulary.piece(token)
            if not piece or token in vocabulary.eog_tokens:
                piece = b"\xff<|%d|>" % token
                self.special_token_ids.append(token)
            self.tokens.append(piece)

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text, not bytes")  # llguidance tries both
        # some tokenizers add a blank before every text: a line break in front takes it
        encode = partial(self._vocabulary.encode, add_special=False)
        seam, joined = encode("\n"), encode("\n" + text)
        return joined[len(seam) :] if joined[: len(seam)] == seam else encode(text)


def check(grammar: Grammar) -> None:
    """Raise GrammarError for a grammar that is wrong, whatever the vocabulary."""
    if reason := llguidance.LLMatcher.validate_grammar(_compiled(grammar), limits=_LIMITS):
        raise GrammarError(f"the {grammar.kind} is wrong: {_line(reason)}")


def _compiled(grammar: Grammar) -> str:
    """The grammar in llguidance's own format. Raises GrammarError."""
    try:
        if grammar.kind == "regular expression":
            return llguidance.LLMatcher.grammar_from_regex(grammar.source)
        if grammar.kind == "grammar":
            return llguidance.LLMatcher.grammar_from_lark(grammar.source)
        schema = rewritten(json.loads(grammar.source))
        return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_STYLE)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the {grammar.kind} is wrong: {_line(str(error))}") from error


def _line(text: str) -> str:
    """The first 300 characters of an error report, in one line."""
    return " ".join(text.split("<state>", maxsplit=1)[0].split())[:300]
