"""Keeps what lets people into this server from the programs that it leads to: at ports, and behind the page of an IDE.

jupyter-server-proxy passes all headers and parameters of a request on. With the token of this server, or the cookie of
a login, a program that logs its requests would have written down what opens the whole session.
"""

from urllib.parse import parse_qsl

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
        """Leave a program its own `Authorization`, its own parameters and its own cookies."""
        request, headers = handler.request, handler.request.headers
        sent = self.auth_header_pat.match(headers.get("Authorization", ""))
        if sent and self._is_token(sent[2]):
            del headers["Authorization"]
        request.query = self._without_token(request.query)
        page, mark, query = headers.get("Referer", "").partition("?")
        if mark:
            query = self._without_token(query)
            headers["Referer"] = f"{page}?{query}" if query else page
        # One line of cookies each: what Tornado joins can't be told from a value with a comma.
        cookies = [cookie.strip() for line in headers.get_list("Cookie") for cookie in line.split(";")]
        others = [cookie for cookie in cookies if cookie and not self._is_login(cookie, handler)]
        headers.pop("Cookie", None)
        if others:
            headers["Cookie"] = "; ".join(others)

    def _is_token(self, text):
        return bool(self.token) and text.strip() == self.token

    def _without_token(self, query):
        pairs = query.split("&")
        return "&".join(pair for pair in pairs if not any(self._is_token(value) for _, value in parse_qsl(pair)))

    def _is_login(self, cookie, handler):
        """Whether it is a login at this server, under whatever host: browsers send cookies to all ports of a host."""
        name = cookie.partition("=")[0]
        return name.startswith("username-") or name == self.get_cookie_name(handler)
