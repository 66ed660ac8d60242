"""onnxruntime's own token-by-token decoding of an exported model: what our text is held against.

Written over onnxruntime alone, without edgespec's runtime: the file as it was exported, one
session, one token a run, the past as the model returned it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class WholeModel:
    """An exported decoder as onnxruntime loads it."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {value.name: value for value in self._session.get_inputs()}
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._config = path.with_name("genai_config.json")
        self.results: dict[str, np.ndarray] = {}
        """Everything that the latest tokens gave, by the names of the graph's outputs."""
        self.start()

    def start(self) -> None:
        """Forget everything decoded."""
        self._n_tokens = 0
        self._past: dict[str, np.ndarray] = {}
        for name, value in self._inputs.items():
            if name.startswith("past"):
                kind = np.float16 if value.type == "tensor(float16)" else np.float32
                head_size = value.shape[3]
                if isinstance(head_size, str):  # left open by onnxruntime-genai's builder
                    model = json.loads(self._config.read_text())["model"]
                    head_size = model["decoder"]["head_size"]
                self._past[name] = np.zeros((1, value.shape[1], 0, head_size), kind)

    def decode(self, token: int) -> np.ndarray:
        """Logits after one more token, float32 [n_vocab]."""
        row: np.ndarray = self.decode_batch([token])[0]
        return row

    def decode_all(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after each of some tokens that begin a text, fed one by one: float32 [tokens,
        n_vocab]."""
        self.start()
        return np.stack([self.decode(token) for token in tokens])

    def decode_batch(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after each of some more tokens, fed together: float32 [tokens, n_vocab]."""
        n = len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, self._n_tokens + n), np.int64),
            "position_ids": np.arange(self._n_tokens, self._n_tokens + n)[None],
            "use_cache_branch": np.array([True]),
        }
        feeds = {name: array for name, array in feeds.items() if name in self._inputs}
        values = self._session.run(self._outputs, feeds | self._past)
        self.results = results = dict(zip(self._outputs, values, strict=True))
        self._past = {
            name: results[name.replace("past_key_values", "present")] for name in self._past
        }
        self._n_tokens += n
        logits: np.ndarray = results["logits"][0].astype(np.float32)
        return logits

    def greedy(
        self, prompt: Sequence[int], n_tokens: int, ends: frozenset[int]
    ) -> tuple[list[int], list[float]]:
        """The continuation of a prompt, and by how much the best logit led at each token."""
        logits = self.decode_all(prompt)[-1]
        tokens: list[int] = []
        margins: list[float] = []
        while len(tokens) < n_tokens:
            second, best = np.sort(logits)[-2:]
            tokens.append(int(np.argmax(logits)))
            margins.append(float(best - second))
            if tokens[-1] in ends:
                break
            logits = self.decode(tokens[-1])
        return tokens, margins
