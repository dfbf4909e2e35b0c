"""Asks the keeper whose a key is. sshd runs this for each key that is offered, with the system's Python and no library.

It gets the fingerprint of a public key, and prints what the keeper answers: one line of `authorized_keys`, or nothing.
"""

import socket
import sys

SECONDS = 10.0
MOST_BYTES = 1 << 20


def main() -> None:
    """Ask and print."""
    place, fingerprint = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(SECONDS)
        keeper.connect(place)
        keeper.sendall(f"{fingerprint}\n".encode())
        answer = b""
        while len(answer) < MOST_BYTES and (part := keeper.recv(65536)):
            answer += part
    if answer.endswith(b"\n"):  # else it was cut off, and would let somebody in for more than they may
        sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
