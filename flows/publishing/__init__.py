"""A stage becomes an image that people may have: checked, tagged, with its evidence; it goes when nobody needs it."""
