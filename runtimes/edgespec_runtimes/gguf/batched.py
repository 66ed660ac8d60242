"""llama.cpp's own decoding of several texts in one pass, through one KV cache.

For comparison only, without a draft: the way in which llama.cpp's server batches its slots.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from edgespec.errors import UsageError
from edgespec.ports.baselines import BaselineRequest, TogetherRun, check_room
from edgespec.values import RoundCost, TextCost
from edgespec_runtimes.gguf.baselines import MMAP, RESIDENT, Input, Sequences

NAMES = (MMAP, RESIDENT)
"""Baselines that can decode several texts at once."""


def run(name: str, request: BaselineRequest, prompts: Sequence[str]) -> TogetherRun:
    """Continue all prompts greedily, a token of each text a pass. Raises ModelError and
    UsageError."""
    if name not in NAMES:
        raise UsageError(f"{name} decodes one text at a time")
    with ExitStack() as owned:
        began = time.perf_counter()
        target = owned.enter_context(_Texts(request.model, request, name == RESIDENT, len(prompts)))
        load_s = time.perf_counter() - began
        encoded = [target.vocabulary.encode(prompt) for prompt in prompts]
        for prompt in encoded:
            check_room(prompt, request)
        read_before, began = request.bytes_read(), time.perf_counter()
        picked = target.read_prompts(encoded)
        texts = [[token] for token in picked]
        ended_s = [0.0] * len(texts)
        prompt_s = time.perf_counter() - began
        n_passes = target.n_batches(encoded)
        rounds = [RoundCost(len(texts), 0, 0, n_passes, 0.0, prompt_s, 0.0, prompt_s)]
        while going := [
            text
            for text, tokens in enumerate(texts)
            if not ended_s[text] and not target.is_over(tokens, request.n_tokens)
        ]:
            pass_began = time.perf_counter()
            inputs = [
                (text, len(encoded[text]) + len(texts[text]) - 1, texts[text][-1], True)
                for text in going
            ]
            for text, row in zip(going, target.decode(inputs), strict=True):
                texts[text].append(int(row.argmax()))
            now = time.perf_counter()
            for text in going:
                if target.is_over(texts[text], request.n_tokens):
                    ended_s[text] = now - began
            pass_s = now - pass_began
            rounds.append(RoundCost(len(going), 0, 0, 1, 0.0, pass_s, 0.0, pass_s))
        end_s = time.perf_counter() - began
        return TogetherRun(
            texts=tuple(map(tuple, texts)),
            costs=tuple(
                TextCost(len(tokens), seconds or end_s)
                for tokens, seconds in zip(texts, ended_s, strict=True)
            ),
            n_prompt_tokens=sum(map(len, encoded)),
            load_s=load_s,
            wall_s=end_s,
            rounds=tuple(rounds),
            bytes_read=request.bytes_read() - read_before,
        )


class _Texts(Sequences):
    """Several texts in one cache."""

    def is_over(self, tokens: Sequence[int], most: int) -> bool:
        return len(tokens) >= most or self.is_end(tokens[-1])

    def n_batches(self, prompts: Sequence[Sequence[int]]) -> int:
        """Passes in which prompts are read."""
        return -(-sum(map(len, prompts)) // self._most)

    def read_prompts(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """The first token of each text; prompts share batches."""
        inputs = [
            (text, position, token, position == len(prompt) - 1)
            for text, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        return [int(row.argmax()) for row in self.decode(inputs)]

    def decode(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """Copies of the logits that are wanted, in the order of the inputs."""
        rows: list[np.ndarray] = []
        for begin in range(0, len(inputs), self._most):
            rows.extend(self._decode(inputs[begin : begin + self._most]).copy())
        return rows
