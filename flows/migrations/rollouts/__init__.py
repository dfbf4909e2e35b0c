"""Rollouts: sessions are observed, planned and moved wave by wave; results of waves, and operators, steer them."""
