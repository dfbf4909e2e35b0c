"""One finding of the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flows.core.settings import Settings


@dataclass(frozen=True)
class Finding:
    """One thing that the machine needs: whether it is as it should be, what was seen, how to mend it."""

    thing: str
    ok: bool
    seen: str
    hint: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"[ok] {self.thing}: {self.seen}"
        return f"[todo] {self.thing}: {self.seen}" + (f"\n       Hint: {self.hint}" if self.hint else "")


Check = Callable[[Settings], Iterable[Finding]]
