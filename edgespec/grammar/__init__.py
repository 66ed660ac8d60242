"""Structured answers: JSON schemas, regular expressions and grammars as masks of the logits."""
