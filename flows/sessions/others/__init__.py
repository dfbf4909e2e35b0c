"""Sessions that others own: a controller of notebooks, or a Hub. Refit sees them, puts in images, and proves them."""
