"""Run in a confined build, with Python alone: hands what comes to a port of loopback to the socket of the mirrors.

It returns once the port answers; a process of it stays until the step ends.
"""

import os
import socket
import threading
from contextlib import suppress

SOCKET = "/mnt/mirrors.sock"
PORT = 3128


def carry(source: socket.socket, target: socket.socket) -> None:
    """Hand over what one side says until it ends; then both end."""
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    for connection in (source, target):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def answer(client: socket.socket) -> None:
    """One connection, both ways."""
    other = socket.socket(socket.AF_UNIX)
    try:
        other.connect(SOCKET)
    except OSError:
        client.close()
        return
    back = threading.Thread(target=carry, args=(other, client), daemon=True)
    back.start()
    carry(client, other)
    back.join()
    client.close()
    other.close()


def main() -> None:
    """Listen, and stay behind."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", PORT))
    except OSError:
        return  # it runs already
    server.listen(64)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    while True:
        client, _ = server.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


if __name__ == "__main__":
    main()
