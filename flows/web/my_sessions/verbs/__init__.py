"""The verbs of the API: each is a route, a form of the pages and a part of `refit mine`."""
