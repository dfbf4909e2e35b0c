"""Figures for Prometheus, looked up whenever it asks."""
