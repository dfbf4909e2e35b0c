"""Catalogs: recipes and releases as people write them, read with every mistake at once."""
