import os

# Benchmarks wait for real programs on a busy machine.
os.environ.setdefault("REFIT_TEST_PATIENCE", "20")
