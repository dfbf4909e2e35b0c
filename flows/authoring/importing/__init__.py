"""The import: a catalog made of a checkout of workbench-images."""
