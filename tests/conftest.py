"""Hypothesis draws the same examples everywhere, and no machine is too slow for them."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("engine_cases", "fake_model", "port_contract", "reference")
settings.register_profile("edgespec", deadline=None, derandomize=True)
settings.load_profile("edgespec")
