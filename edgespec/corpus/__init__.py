"""Builds and searches the index of a corpus, in which guesses are looked up."""
