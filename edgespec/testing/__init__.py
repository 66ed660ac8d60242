"""Test tools for authors of runtimes: a fake model and contract tests."""
