"""Rules that can be exchanged: pure objects, which know no model, no clock and no engine."""
