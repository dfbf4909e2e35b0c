#!/usr/bin/python3 -IS
"""The AuthorizedKeysCommand of the jump host: sshd runs it for each key, with the system's Python and no library.

It asks the monitor about the fingerprint of a public key, and prints the answer: one line of `authorized_keys`, or
nothing.
"""

import socket
import sys

SECONDS = 10.0
MOST_BYTES = 1 << 20


def main() -> None:
    """Ask and print."""
    place, fingerprint = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(SECONDS)
        monitor.connect(place)
        monitor.sendall(f"{fingerprint}\n".encode())
        answer = b""
        while len(answer) < MOST_BYTES and (part := monitor.recv(65536)):
            answer += part
    if answer.endswith(b"\n"):  # else it was cut off, and would let somebody in for more than they may
        sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
