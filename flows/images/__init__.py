"""The parts of images: stages, how they hang together, what is there already, and how they come into a registry."""
