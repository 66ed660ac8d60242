"""What a session has computed, kept in a file: it knows ports, and no engine."""
