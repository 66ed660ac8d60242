"""Decides what a round does: prices of passes and drafting, how often guesses are right, and what
they may cost."""
