"""Files as they are after an accident: cut, mixed up, replaced."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

Spoil = Callable[[bytes], bytes]
ODD = ["\x00", "\ufeff", "\r", "\t", "{{", "{%", "&a [*a]", "? [1, 2]\n: 3\n", "!!python/object:x {}\n", "- ", "é", '"']


@st.composite
def spoilt(draw: st.DrawFn) -> Spoil:
    """Another content altogether, or the old one with something cut out, put in, or in another place."""
    if draw(st.booleans()):
        content = draw(
            st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.sampled_from(ODD).map(str.encode)
        )
        return lambda _: content
    start, length = draw(st.floats(0, 1)), draw(st.integers(0, 40))
    new = draw(st.binary(max_size=8) | st.sampled_from(ODD).map(str.encode) | st.text(max_size=8).map(str.encode))

    def spoil(old: bytes) -> bytes:
        at = int(start * len(old))
        return old[:at] + new + old[at + length :]

    return spoil
