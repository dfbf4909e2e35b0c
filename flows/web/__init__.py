"""What people open in a browser, beside their IDEs."""
