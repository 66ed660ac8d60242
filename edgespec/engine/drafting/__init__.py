"""Drafting: the sources of guesses, their calibration, and the growth of one tree from them."""
