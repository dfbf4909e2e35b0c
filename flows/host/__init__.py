"""What is true of this machine, and how its programs are called."""
