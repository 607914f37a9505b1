"""A file that does not load."""

raise RuntimeError("half a file")
