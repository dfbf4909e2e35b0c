"""How many examples a property is tried with: all in `make test-all`, a part of them in `make test` and `make unit`."""

from __future__ import annotations

from hypothesis import settings

FULL = 100  # what hypothesis tries where nobody chose a profile
FEWEST = 5


def several(full: int) -> int:
    """The part of `full` examples that the profile of this run wants; the profiles are in tests/conftest.py."""
    return min(full, max(FEWEST, full * settings().max_examples // FULL))
