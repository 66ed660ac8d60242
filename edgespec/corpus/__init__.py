"""A corpus that a user indexes once, so that guesses can be looked up in it."""
