"""Regular files, unfinished files and folders, and the cache folder."""
