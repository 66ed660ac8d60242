"""Makes an EAGLE-3 head for a real model, a LLaMA or Qwen2 that chats in ChatML, from text that
this model writes itself. Every stage continues where it stopped: texts, training, GGUF file."""

from __future__ import annotations

import gguf
import torch

import gguf_llama
from eagle_head import EagleHead, divergence, fused_layers, likeliest, write
from questions import dialogues
from real_draft import SEED, load_texts, new_parser, train
from self_text import write_texts

BATCH, RATE = 8, 0.022
"""Rows of text in a step, and Muon's learning rate."""
N_GUESSED = 8192
TEXT_MINUTES, TRAINING_MINUTES = 25.0, 30.0


def main() -> None:
    parser = new_parser(__doc__, TEXT_MINUTES, TRAINING_MINUTES)
    parser.add_argument("--kind", default="Q8_0", help="how the layer's matrices are stored")
    parser.add_argument("--n-guessed", type=int, default=N_GUESSED, help="0: all tokens")
    parser.add_argument("--hidden", type=int, help="values inside its layer (default: all)")
    parser.add_argument("--kv-heads", type=int, help="default: one for every head")
    parser.add_argument("--norm", action="store_true", help="a norm before hidden states are fused")
    parser.add_argument("--borrow", action="store_true", help="leave the embeddings out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    fields = gguf.GGUFReader(options.target).fields
    kind = fields["general.architecture"].contents()
    layers = fused_layers(fields[f"{kind}.block_count"].contents())
    folder = options.work / "texts"
    minutes = 60 * options.text_minutes
    write_texts(options.target, dialogues(SEED, kind), folder, minutes, layers)
    texts = load_texts(folder)
    print(f"{texts.tokens.numel():,} tokens", flush=True)
    target = gguf_llama.read(options.target, (-1,), torch.bfloat16)
    n_hidden = options.hidden or target.shape.hidden
    head = EagleHead(target, n_hidden, options.kv_heads or target.shape.n_heads, options.norm)
    head.calibrate(texts.features[:BATCH])
    states = options.work / "eagle3"
    states.mkdir(exist_ok=True)
    train(head, texts, states, 60 * options.training_minutes, divergence, BATCH, RATE)
    name = fields["general.name"].contents()
    about = {
        "name": f"{name} EAGLE-3 head",
        "organization": "edgespec",
        "license": "apache-2.0",
        "description": f"Trained on the own text of {name} by models/recipe/real_head.py",
    }
    tokens = likeliest(texts, options.n_guessed) if options.n_guessed else None
    write(head, options.out, options.target, about, options.kind, tokens, options.borrow, layers)


if __name__ == "__main__":
    main()
