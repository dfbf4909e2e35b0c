"""An IDE's server as a program of a session: what RStudio and others ask of a gateway, without their packages.

It knows its base path, redirects with and without the name of its host, sets cookies, and has a service worker, a
websocket and a stream of events. A session runs it with the Tornado of its own Jupyter server.

    python3 stand_in_ide.py PORT BASE-PATH
"""

import asyncio
import sys
from pathlib import Path

from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

PAGE = """<!doctype html><title>IDE</title>
<p id=socket></p><p id=stream></p><p id=worker></p><p id=wide></p><p id=cookies></p>
<script type=module>
const show = (name, text) => { document.getElementById(name).textContent = text; };
const socket = new WebSocket("socket");
socket.onopen = () => socket.send("hello");
socket.onmessage = (message) => show("socket", message.data);
socket.onclose = () => show("socket", "closed");
window.save = (name) => socket.send(`save ${name}`);
const stream = new EventSource("events");
stream.onmessage = () => show("stream", "open");
stream.onerror = () => show("stream", stream.readyState === EventSource.CLOSED ? "closed" : "tries again");
show("cookies", document.cookie);
const workers = navigator.serviceWorker;
await workers.register("worker.js", {scope: "/"}).then(() => show("wide", "taken"), () => show("wide", "refused"));
await workers.register("worker.js");
if (!workers.controller) await new Promise((done) => workers.addEventListener("controllerchange", done));
show("worker", await (await fetch("made-up")).text());
</script>
"""
WORKER = """
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
    if (event.request.url.endsWith("/made-up")) event.respondWith(new Response("by the worker"));
});
"""


class Noted(RequestHandler):
    """Keeps what came to it, but for cookies."""

    def prepare(self) -> None:
        with Path.home().joinpath(f"asked-{sys.argv[1]}").open("a") as file:
            file.write(f"{self.request.uri} {self.request.headers.get('Authorization', '')}\n")


class First(Noted):
    """Leads on by a relative address."""

    def get(self) -> None:
        self.redirect("start")


class Start(Noted):
    """Sets cookies, one of them under a name of Refit's, and leads on by an address with the name of the host."""

    def get(self) -> None:
        for cookie in ("theme=dark; Path=/", "refit-session=forged; Path=/", "jupyterhub-session-id=forged; Path=/"):
            self.add_header("Set-Cookie", cookie)
        protocol = self.request.headers.get("X-Forwarded-Proto", "http").split(",")[0]
        self.redirect(f"{protocol}://{self.request.host}{self.settings['base']}/page")


class Page(Noted):
    def get(self) -> None:
        self.write(PAGE)


class Worker(RequestHandler):
    """A service worker that asks for the whole host."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/javascript")
        self.set_header("Service-Worker-Allowed", "/")
        self.write(WORKER)


class Events(RequestHandler):
    """A stream without an end."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        while True:
            self.write("data: more\n\n")
            await self.flush()
            await asyncio.sleep(0.2)


class Socket(WebSocketHandler):
    """Answers with what it is told, and saves a file of the name that it is given."""

    def on_message(self, message: str | bytes) -> None:
        word, _, name = str(message).partition(" ")
        if word == "save":
            Path.home().joinpath(Path(name).name).write_text("saved\n")
        self.write_message(message)


async def main() -> None:
    port, base = int(sys.argv[1]), sys.argv[2]
    pages = {"/": First, "/start": Start, "/page": Page, "/worker.js": Worker, "/events": Events, "/socket": Socket}
    Application([(f"{base}{path}", handler) for path, handler in pages.items()], base=base).listen(port, "127.0.0.1")
    await asyncio.Event().wait()


asyncio.run(main())
