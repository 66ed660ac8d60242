"""Answers files of requests in OpenAI's batch format, several at a time and resumable."""
