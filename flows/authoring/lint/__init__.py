"""Mistakes in a catalog's recipes that are seen without a build."""
