"""Pages that people open in a browser, beside their IDEs."""
