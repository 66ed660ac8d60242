"""Compares the greedy texts of a checkpoint and of the files made from it, and prints JSON.
Runs each model token by token with its own library: PyTorch, llama.cpp, onnxruntime."""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import llama_cpp.llama_cpp as llama
import numpy as np
import onnxruntime
import torch
from tokenizers import Tokenizer
from transformers import DynamicCache, LlamaForCausalLM

from tokenizer import END_OF_TEXT

NEW_TOKENS = 64
ROUNDING = 0.03
"""Largest difference of two logits that rounding to 16 bits explains, as a share of their standard
deviation."""


class TextDecoder(Protocol):
    """A model and the text that it has read."""

    def start(self) -> None:
        """Forget the text."""

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of `tokens`, float32 [n_vocab]."""


class CheckpointDecoder:
    def __init__(self, folder: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def start(self) -> None:
        self._cache = DynamicCache(config=self._model.config)

    @torch.no_grad()
    def read(self, tokens: Sequence[int]) -> np.ndarray:
        output = self._model(torch.tensor([list(tokens)]), past_key_values=self._cache)
        return output.logits[0, -1].numpy()


class GgufDecoder:
    def __init__(self, file: Path) -> None:
        llama.llama_log_set(_silence, None)
        self._model = llama.llama_model_load_from_file(
            bytes(file), llama.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"{file} could not be loaded by llama.cpp")
        params = llama.llama_context_default_params()
        params.n_threads = params.n_threads_batch = 1
        self._context = llama.llama_init_from_model(self._model, params)
        vocabulary = llama.llama_model_get_vocab(self._model)
        self._n_vocab = llama.llama_vocab_n_tokens(vocabulary)

    def start(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        code = llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(tokens)))
        if code:
            raise SystemExit(f"llama_decode returned {code}")
        logits = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self._n_vocab,)).copy()


class OnnxDecoder:
    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        self._past = [i for i in self._session.get_inputs() if i.name.startswith("past_key_values")]

    def start(self) -> None:
        self._n_read = 0
        self._state = {
            i.name: np.zeros(
                (1, i.shape[1], 0, i.shape[3]),
                np.float16 if i.type == "tensor(float16)" else np.float32,
            )
            for i in self._past
        }

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        positions = np.arange(self._n_read, self._n_read + len(tokens), dtype=np.int64)
        self._n_read += len(tokens)
        feed = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "attention_mask": np.ones((1, self._n_read), dtype=np.int64),
            "position_ids": positions[None],
        }
        present = [name.replace("past_key_values", "present") for name in self._state]
        logits, *state = self._session.run(["logits", *present], feed | self._state)
        self._state = dict(zip(self._state, state, strict=True))
        return logits[0, -1].astype(np.float32)


@llama.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    pass


@dataclass(frozen=True)
class Place:
    """A position in a text, and the reference's logits there, float32 [n_vocab]."""

    prompt: str
    step: int
    logits: np.ndarray

    @property
    def token(self) -> int:
        return int(self.logits.argmax())

    @property
    def margin(self) -> float:
        """Difference of the best and the second-best logit."""
        second, best = np.partition(self.logits, -2)[-2:]
        return float(best - second)


Texts = dict[str, list[int]]
"""Tokens of each prompt, by its name."""


def write(reference: TextDecoder, prompts: Texts, n_tokens: int, end: int) -> list[Place]:
    """The places of the reference's greedy texts."""
    places = []
    for name, prompt in prompts.items():
        reference.start()
        unread = prompt
        for step in range(n_tokens):
            place = Place(name, step, reference.read(unread))
            places.append(place)
            if place.token == end:
                break
            unread = [place.token]
    return places


def follow(model: TextDecoder, prompts: Texts, places: list[Place]) -> Iterator[np.ndarray]:
    """Logits of `model` at each place, after the reference's tokens before it."""
    unread: list[int] = []
    for place in places:
        if place.step == 0:
            model.start()
            unread = prompts[place.prompt]
        yield model.read(unread)
        unread = [place.token]


def compare(model: TextDecoder, prompts: Texts, places: list[Place], spread: float) -> dict:
    """Places where `model` would choose another token, and the largest difference of logits.

    Every number is in logits. No token can differ where the margin is above twice the largest
    difference; `within_rounding` is true if rounding explains this difference.
    """
    differing, largest = [], 0.0
    for place, logits in zip(places, follow(model, prompts, places), strict=True):
        largest = max(largest, float(np.abs(logits - place.logits).max()))
        if int(logits.argmax()) != place.token:
            differing.append(
                {"prompt": place.prompt, "step": place.step, "margin": round(place.margin, 5)}
            )
    return {
        "differing": len(differing),
        "largest_difference": round(largest, 6),
        "within_rounding": largest <= ROUNDING * spread,
        "places": differing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="the reference: a folder, run in float32")
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files and ONNX folders")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with name, prompt")
    parser.add_argument("--tokens", type=int, default=NEW_TOKENS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    prompts = {
        entry["name"]: tokenizer.encode(entry["prompt"]).ids for entry in map(json.loads, lines)
    }
    end = tokenizer.token_to_id(END_OF_TEXT)
    places = write(CheckpointDecoder(options.checkpoint), prompts, options.tokens, end)
    spread = float(np.mean([place.logits.std() for place in places]))
    models = {
        path.name: compare(
            OnnxDecoder(path) if path.is_dir() else GgufDecoder(path), prompts, places, spread
        )
        for path in options.models
    }
    result = {
        "reference": options.checkpoint.name,
        "prompts": len(prompts),
        "tokens": len(places),
        "logits_spread": round(spread, 3),
        "models": models,
    }
    print(json.dumps(result, indent=2))
    beyond = [name for name, model in models.items() if not model["within_rounding"]]
    if beyond:
        raise SystemExit(f"more than rounding to 16 bits explains: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
