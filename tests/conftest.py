"""Hypothesis draws the same examples everywhere, and no machine is too slow for them."""

from hypothesis import settings

settings.register_profile("edgespec", deadline=None, derandomize=True)
settings.load_profile("edgespec")
