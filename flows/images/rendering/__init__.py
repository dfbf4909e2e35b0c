"""Templates of a catalog, rendered in a process that can do nothing else."""
