"""The ground floor of all rooms: errors, programs, settings, documents, the database."""
