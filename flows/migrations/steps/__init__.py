"""The effects of a move's steps, those that lead forth and those that lead back."""
