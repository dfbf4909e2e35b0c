"""What is wrong with a catalog's recipes, seen without a build."""
