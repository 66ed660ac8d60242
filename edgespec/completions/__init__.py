"""Requests and answers in the shapes of OpenAI's API, for Python callers and for the server."""
