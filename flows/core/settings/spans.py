"""Ranges of whole numbers in settings.yaml."""

from __future__ import annotations

from pydantic import Field

from flows.core.documents import Document


class Span(Document):
    """A range of whole numbers, both ends included."""

    first: int = Field(ge=1)
    last: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last
