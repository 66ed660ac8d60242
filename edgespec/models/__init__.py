"""Models by name: what is embedded, cached, described, compared and enlarged."""
