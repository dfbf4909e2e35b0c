"""Bundles of people's own: read with their rights, held against what such a bundle may have, put into a catalog."""
