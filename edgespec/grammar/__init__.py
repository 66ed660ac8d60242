"""Structured answers: schemas, regular expressions and grammars as a mask on the logits."""
