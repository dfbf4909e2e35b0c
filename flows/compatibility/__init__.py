"""Whether a home and another image go together, and how to mend what doesn't."""
