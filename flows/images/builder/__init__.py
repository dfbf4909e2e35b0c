"""How one stage is made on this machine: with caches, in a workspace of which nothing stays, beside others or alone."""
