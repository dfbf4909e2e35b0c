"""The page that answers for a session that is away: why it is, and for how long. `housekeeping` runs beside it."""
