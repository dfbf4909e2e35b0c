"""What an IDE says of itself, and what it is asked before and after a stop."""
