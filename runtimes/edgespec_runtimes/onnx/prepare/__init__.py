"""Prepares an exported decoder for loading."""
