"""Who moves, when, and why not yet: pure decisions, and the policies that they follow."""
