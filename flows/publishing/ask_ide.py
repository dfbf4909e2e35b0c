"""Asks the IDE of an image for its health and its page: runs beside it, with nothing but the image's own Python.

It is called with two URLs and the seconds for which it may ask again, and prints JSON. The URLs are those of the health
and of the page without its token; the latter is empty where the page has none, and isn't asked for then.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request

ANSWER_SECONDS, PAUSE_SECONDS = 5.0, 0.5


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """No answer leads elsewhere."""


def code(url: str) -> int:
    """The status of an answer, without its content, which may have no end.

    Raises:
        OSError: nothing answers.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stays)
    try:
        with opener.open(url, timeout=ANSWER_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def opens(page: str) -> bool:
    """Whether a page answers, and doesn't refuse."""
    try:
        return 200 <= code(page) < 300
    except (OSError, http.client.HTTPException):
        return False


def asked(health: str, page: str, seconds: float) -> dict[str, object]:
    """The last that was seen of the health, whether that is 200, and whether the page opens to all."""
    end, seen = time.monotonic() + seconds, "nothing"
    while True:
        try:
            answer = code(health)
        except (OSError, http.client.HTTPException) as error:
            seen = str(error) or type(error).__name__
        else:
            seen = f"it answers {answer}"
            if answer == http.HTTPStatus.OK:
                return {"seen": seen, "ready": True, "opens": bool(page) and opens(page)}
        if time.monotonic() > end:
            return {"seen": seen, "ready": False, "opens": False}
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    print(json.dumps(asked(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
