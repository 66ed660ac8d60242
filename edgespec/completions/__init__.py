"""Requests and responses in the formats of OpenAI's API, for Python callers and the server."""
