"""Makes a head for a real model, SmolLM2-135M-Instruct, from text that this model writes itself:
EAGLE-3 or DFlash. Every stage continues where it stopped: texts, training, GGUF file."""

from __future__ import annotations

import torch

import block_head
import eagle_head
import gguf_llama
from block_head import BlockHead
from eagle_head import EagleHead
from questions import dialogues
from real_draft import SEED, load_texts, new_parser, train
from self_text import write_texts
from target_head import LAYERS, likeliest, write

HEADS = {
    "eagle3": ("EAGLE-3", EagleHead, eagle_head.divergence),
    "dflash": ("DFlash", BlockHead, block_head.divergence),
}
BATCH, RATE = 8, 0.022
"""Rows of text in a step, and Muon's learning rate."""
N_GUESSED = 8192
TEXT_MINUTES, TRAINING_MINUTES = 25.0, 30.0


def main() -> None:
    parser = new_parser(__doc__, TEXT_MINUTES, TRAINING_MINUTES)
    parser.add_argument("--head", choices=HEADS, default="eagle3", help="what guesses")
    parser.add_argument("--kind", default="Q8_0", help="how the layers' matrices are stored")
    parser.add_argument("--n-guessed", type=int, default=N_GUESSED, help="0: all tokens")
    parser.add_argument("--borrow", action="store_true", help="leave the embeddings out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.work / "texts"
    write_texts(options.target, dialogues(SEED), folder, 60 * options.text_minutes, LAYERS)
    texts = load_texts(folder)
    print(f"{texts.tokens.numel():,} tokens", flush=True)
    title, kind, divergence = HEADS[options.head]
    head = kind(gguf_llama.read(options.target))
    head.calibrate(texts.features[:BATCH])
    states = options.work / options.head
    states.mkdir(exist_ok=True)
    train(head, texts, states, 60 * options.training_minutes, divergence, BATCH, RATE)
    about = {
        "name": f"SmolLM2-135M-Instruct {title} head",
        "organization": "edgespec",
        "license": "apache-2.0",
        "description": "Trained on SmolLM2-135M-Instruct's own text by models/recipe/real_head.py",
    }
    tokens = likeliest(texts, options.n_guessed) if options.n_guessed else None
    write(head, options.out, options.target, about, options.kind, tokens, options.borrow)


if __name__ == "__main__":
    main()
