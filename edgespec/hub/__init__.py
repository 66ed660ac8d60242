"""Models fetched by their name from a Hugging Face hub, into the cache that its tools share."""
