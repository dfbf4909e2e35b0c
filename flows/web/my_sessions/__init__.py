"""My sessions: the page and the API of the people whose sessions these are, as a service of JupyterHub.

One table of verbs (`verbs.table`) makes the routes of the API, its OpenAPI description and the forms of the pages, so
that whatever a page can do, a program can do as well.
"""
