"""Files and folders: what may be opened, what is unfinished yet, what can be made again."""
