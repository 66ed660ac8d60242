"""Conversations: messages, the model's own template, and reasoning told apart from the answer."""
