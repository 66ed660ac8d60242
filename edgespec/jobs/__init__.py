"""Runs jobs in processes of their own, with limits."""
