"""People as the Hub knows them, for all of Refit that asks it: their servers, their limits, what they are offered."""
