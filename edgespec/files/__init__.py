"""Files: regular ones, atomic writes, logs of lines, and the cache folder."""
