"""Definitions of commands, flags and their help texts. Runs nothing."""
