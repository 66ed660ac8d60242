"""Sessions: models loaded once that generate texts, for threads and for asyncio."""
