"""Sources of guesses, such as a draft model or a lookup, and the mixer of what they say."""
