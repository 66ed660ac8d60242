"""Measurements behind the records: printed tables, not tests."""
