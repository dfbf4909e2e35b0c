"""Where pages and API are. Pure."""

from flows.gateway import routes

BASE = routes.MY_SESSIONS
API = f"{BASE}/api"
