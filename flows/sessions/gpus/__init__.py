"""The GPUs of a machine, and who has which."""
