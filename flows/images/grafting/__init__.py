"""Layers that were made on one parent, put on another: whether they may, and how it is done without a container."""
