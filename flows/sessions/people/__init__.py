"""People and sessions: who may use which, since when, until when, and by whose word."""
