"""Where guesses come from, how far each source is trusted, and how they become one tree."""
