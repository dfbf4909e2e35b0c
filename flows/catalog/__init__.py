"""Catalogs: what may be built and shipped, as people write it, read with every mistake at once."""
