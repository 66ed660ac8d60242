"""HTTP server with OpenAI's API for a session. Needs the extra `serve`."""
