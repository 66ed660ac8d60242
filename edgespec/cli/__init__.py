"""The command line: flags, commands, and what they print."""
