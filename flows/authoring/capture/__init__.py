"""From the changes that a person made by hand in a session to a bundle that has them."""
