"""Releases: what is to be done for one, its branches, its reports and tables."""
