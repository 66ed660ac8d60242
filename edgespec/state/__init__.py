"""The prompt cache: keys and values of texts on disk, in blocks that later texts find."""
