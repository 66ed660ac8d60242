"""A session behind HTTP, as OpenAI's API has it. Needs the extra `serve`."""
