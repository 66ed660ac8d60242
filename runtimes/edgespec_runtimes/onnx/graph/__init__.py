"""Analyses, rewrites and cuts a decoder's graph."""
