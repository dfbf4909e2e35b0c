"""What everything stands on: errors, programs, settings, documents, the database."""
