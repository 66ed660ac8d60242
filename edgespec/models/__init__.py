"""Models by name: embedded and cached ones, their description, comparison and modification."""
