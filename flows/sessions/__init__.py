"""Sessions: one developer's environment each, from its creation to its end."""
