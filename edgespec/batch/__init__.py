"""Files of requests in OpenAI's batch format, answered several at a time and resumed."""
