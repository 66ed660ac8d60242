"""The command line's grammar: commands, flags and their help texts. It runs nothing."""
