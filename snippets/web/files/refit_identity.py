"""Keeps what lets people into this server from the programs that it leads to: at ports, and behind the page of an IDE.

jupyter-server-proxy passes all headers of a request on. With the token of this server, or the cookie of a login, a
program that logs its requests would have written down what opens the whole session.
"""

from jupyter_server.auth.identity import PasswordIdentityProvider

try:
    from jupyter_server_proxy.handlers import ProxyHandler
except ImportError:  # this server leads to no program

    class ProxyHandler:
        """Nothing is one."""


class IdentityProvider(PasswordIdentityProvider):
    """Knows people as Jupyter does, and takes their token and their login out of a request that goes to a program."""

    async def get_user(self, handler):
        """The person who asks; the answer is remembered with the request, which is asked about but once."""
        user = await super().get_user(handler)
        if isinstance(handler, ProxyHandler):
            self.keep_to_itself(handler)
        return user

    def keep_to_itself(self, handler):
        """Leave a program its own cookies and its own `Authorization`."""
        headers = handler.request.headers
        sent = self.auth_header_pat.match(headers.get("Authorization", ""))
        if sent and self.token and sent[2].strip() == self.token:
            del headers["Authorization"]
        login = f"{self.get_cookie_name(handler)}="
        cookies = [one.strip() for one in headers.get("Cookie", "").split(";")]
        others = [one for one in cookies if one and not one.startswith(login)]
        headers.pop("Cookie", None)
        if others:
            headers["Cookie"] = "; ".join(others)
