"""A small model of the same structure, with real weights."""
