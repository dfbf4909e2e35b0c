"""Help for people who write a catalog: lint, and the import of others' catalogs."""
