"""Texts that an instruct model writes itself, with what it thought of every next token.
Rows advance together, prompts token by token, so that no padding is computed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from gguf_llama import Llama, read
from questions import ANSWER

ROWS, LENGTH = 128, 320
KEPT = 32
"""Candidates of a next token whose probabilities are kept."""
TEMPERATURES = (0.0, 0.7)
N_INVENTED = 24
"""First tokens of a user's message or of a text that are drawn at temperature 1."""
LOOP, TIMES = 12, 3
"""Tokens that end a dialogue when they are said so many times in it."""


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words of a Qwen2, as its `tokenizer.json` has them."""


def tokenizer_of(path: Path) -> Tokenizer:
    """The byte-level BPE of a GGUF file whose digits stand alone (`smollm`, `qwen2`)."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    if fields["tokenizer.ggml.pre"].contents() == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        words = [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(words)
    made.decoder = decoders.ByteLevel()
    control = (t for t, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL)
    made.add_special_tokens([AddedToken(token, special=True) for token in control])
    return made


class Speaker:
    """One row: what it is told, and when it says something of its own."""

    def __init__(
        self,
        dialogues: Iterator[list[list[int]]],
        ends: list[int],
        line_end: int,
        answer: list[int],
    ) -> None:
        """`ends`: the token that ends an answer, then others that end a text."""
        self._dialogues = dialogues
        self._ends, self._line_end, self._answer = ends, line_end, answer
        self._due: list[list[int]] = []
        self._told: list[int] = []
        self._said: deque[int] = deque(maxlen=LOOP)
        self._heard: Counter[tuple[int, ...]] = Counter()
        self._n_to_invent = 0

    @property
    def invents(self) -> bool:
        """The next tokens begin a user's message or a text, which are to differ between rows."""
        return self._n_to_invent > 0

    def start(self) -> None:
        self._due = list(next(self._dialogues))
        self._said.clear()
        self._heard.clear()
        self._tell([])

    def take(self, own: int, last: int) -> int:
        """The next token, given the model's choice and the token before."""
        if not self._told and last in self._ends:  # an answer is over, perhaps the dialogue, too
            if self._due:
                self._tell([self._line_end])
            else:
                self.start()
        if self._told:
            return self._told.pop(0)
        self._n_to_invent -= 1
        self._said.append(own)
        repeated = tuple(self._said)
        self._heard[repeated] += 1
        if len(repeated) == LOOP and self._heard[repeated] == TIMES:
            self._due.clear()
            return self._ends[0]
        return own

    def _tell(self, before: list[int]) -> None:
        told = self._due.pop(0)
        answers = told[-len(self._answer) :] == self._answer
        self._n_to_invent = 0 if answers else N_INVENTED
        self._told = before + told


@torch.inference_mode()
def write_rows(
    target: Llama,
    speakers: list[Speaker],
    temperatures: torch.Tensor,
    length: int,
    layers: tuple[int, ...],
) -> dict[str, np.ndarray]:
    """Tokens uint32 [rows, length] of one row a speaker, the KEPT likeliest next tokens after
    each with their log-probabilities, uint32 and float16 [rows, length, KEPT], and what enters
    `layers`, the bits of bfloat16 [rows, length, layers, values]."""
    shape, n = target.shape, len(speakers)
    groups = shape.n_heads // shape.n_kv_heads
    sizes = (2, n, shape.n_kv_heads, length, shape.head)
    kv = [torch.zeros(sizes, dtype=torch.bfloat16) for _ in target.blk]
    tokens = np.zeros((n, length), np.uint32)
    ids = np.zeros((n, length, KEPT), np.uint32)
    chances = np.zeros((n, length, KEPT), np.float16)
    features = np.zeros((n, length, len(layers), shape.width), np.int16)
    for speaker in speakers:
        speaker.start()
    now = torch.tensor([speaker.take(0, -1) for speaker in speakers])
    for place in range(length):
        tokens[:, place] = now.numpy()
        x, turns = target.token_embd[now[:, None]], target.turns(place, place + 1)
        for number, (layer, cache) in enumerate(zip(target.blk, kv, strict=True)):
            if number in layers:
                entering = x[:, 0].bfloat16().view(torch.int16)
                features[:, place, layers.index(number)] = entering.numpy()
            q, k, v = layer.qkv(x, turns)
            cache[0][:, :, place], cache[1][:, :, place] = k[:, :, 0], v[:, :, 0]
            keys, values = cache[:, :, :, : place + 1]
            q = q.reshape(n * shape.n_kv_heads, groups, shape.head)
            scores = q @ keys.flatten(0, 1).mT * shape.head**-0.5
            found = scores.float().softmax(-1).to(q.dtype) @ values.flatten(0, 1)
            x = layer.rest(x, found.reshape(n, shape.n_heads, 1, shape.head))
        logits = target.logits(target.normed(x)[:, 0]).float()
        best = logits.topk(KEPT)
        ids[:, place] = best.indices.numpy()
        chances[:, place] = (best.values - logits.logsumexp(-1, keepdim=True)).numpy()
        invents = torch.tensor([speaker.invents for speaker in speakers])
        heat = torch.where(invents, 1.0, temperatures.clamp(min=1e-3))
        warm = best.values / heat[:, None]
        own = best.indices.gather(1, warm.softmax(-1).multinomial(1))[:, 0].tolist()
        pairs = zip(speakers, own, now.tolist(), strict=True)
        now = torch.tensor([speaker.take(mine, last) for speaker, mine, last in pairs])
    return {"tokens": tokens, "ids": ids, "chances": chances, "features": features}


def write_texts(
    path: Path,
    dialogues: Iterator[list[str]],
    folder: Path,
    budget_s: float,
    layers: tuple[int, ...] = (),
) -> None:
    """Files of rows in `folder` until they took `budget_s` seconds together; those of an earlier
    run count, and about the dialogues that they used up are passed over."""
    folder.mkdir(parents=True, exist_ok=True)
    spent_s = sum(float(np.load(file)["spent_s"]) for file in text_files(folder))
    if spent_s >= budget_s:
        return
    codec = tokenizer_of(path)
    encoded = ([codec.encode(text).ids for text in dialogue] for dialogue in dialogues)
    fields = gguf.GGUFReader(path).fields
    names = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "padding")]
    ends = [fields[name].contents() for name in names if name in fields]
    (line_end,) = codec.encode("\n").ids
    answer = codec.encode(ANSWER).ids
    hot = torch.tensor([TEMPERATURES[row % len(TEMPERATURES)] for row in range(ROWS)])
    target = read(path, dtype=torch.bfloat16)
    number = len(text_files(folder))
    for _ in range(3 * ROWS * number):
        next(dialogues)
    while spent_s < budget_s:
        started = time.monotonic()
        torch.manual_seed(number)
        speakers = [Speaker(encoded, ends, line_end, answer) for _ in range(ROWS)]
        rows = write_rows(target, speakers, hot, LENGTH, layers)
        took = time.monotonic() - started
        file = folder / f"{number:03}.npz"
        unfinished = file.with_suffix(".part.npz")
        np.savez(unfinished, **rows, spent_s=took)
        unfinished.replace(file)
        print(f"{file.name}: {rows['tokens'].size:,} tokens in {took:.0f} s", flush=True)
        spent_s, number = spent_s + took, number + 1


def text_files(folder: Path) -> list[Path]:
    """The finished files of rows, in order."""
    return sorted(folder.glob("[0-9][0-9][0-9].npz"))
