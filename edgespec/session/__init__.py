"""Sessions: a pair that is loaded once and generates texts, for threads and for asyncio."""
