"""Where settings come from, read by pydantic-settings: variables, then a file, then what else is given.

A mistake in the file has its line, one in a variable its name, and all are told at once. A setting that a variable
names has nothing from the file: a table isn't put together from both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from flows.core import documents
from flows.core.documents import Document, Mistake, Mistakes
from flows.core.lazily import lazily_in

# A tenth of what `refit session list` takes, for commands that are coroutines and for files that aren't read here.
with (
    lazily_in("pydantic_settings.main", "asyncio"),
    lazily_in("pydantic_settings.sources.providers.dotenv", "dotenv"),
):
    from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

PREFIX = "REFIT_"
_TEXTS = (str, Path, SecretStr)
Sources = tuple[PydanticBaseSettingsSource, ...]
Model = TypeVar("Model", bound=Document)


def gathered(
    model: type[Model],
    file: Path,
    resolve: Callable[[object], object],
    others: Mapping[str, object],
    without: str,
) -> Model:
    """The settings of all sources.

    Args:
        model: the model that they have to fit.
        file: YAML, which need not be there.
        resolve: makes the value of the file that is meant of one that is written.
        others: settings that neither variables nor the file name.
        without: the one that no variable sets.

    Raises:
        Mistakes: all of the file and of the variables.
    """
    mistakes = list[Mistake]()
    written: dict[str, object] = {}
    try:
        if file.exists():
            document = documents.read(file, model)
            written = {name: resolve(getattr(document, name)) for name in document.model_fields_set}
    except Mistakes as error:
        mistakes += error.mistakes

    def sources(fits: type[BaseSettings]) -> Sources:
        return _Variables(fits, without, mistakes), _Given(fits, written), _Given(fits, others)

    try:
        settings = _gathering(model, sources)()
    except ValidationError as error:
        mistakes += map(_of_variable, error.errors(include_url=False, include_input=False))
    if mistakes:
        raise Mistakes(mistakes)
    values: dict[str, Any] = dict(settings)
    return cast("Model", model.model_construct(settings.model_fields_set, **values))


def _gathering(model: type[Document], sources: Callable[[type[BaseSettings]], Sources]) -> type[BaseSettings]:
    """The model, which reads these sources: the first of them goes before the others."""

    class Gathered(BaseSettings, model):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(  # type: ignore[override]  # all others are given by name
            cls, settings_cls: type[BaseSettings], **_: object
        ) -> Sources:
            """All of them, and nothing that is there by itself."""
            return sources(settings_cls)

    return Gathered


class _Variables(EnvSettingsSource):
    """Texts and paths as they are, all else as YAML; an empty variable is none."""

    def __init__(self, settings_cls: type[BaseSettings], without: str, mistakes: list[Mistake]) -> None:
        super().__init__(settings_cls, case_sensitive=False, env_prefix=PREFIX, env_ignore_empty=True)
        self._without, self._mistakes = without, mistakes

    def prepare_field_value(self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool) -> Any:
        """The value that a text means; its text isn't repeated in a mistake, for a secret may be in it."""
        if value is None or field_name == self._without:
            return None
        if field.annotation in _TEXTS:
            return value
        try:
            return documents.parse_plain(value, variable(field_name))
        except Mistakes as error:
            self._mistakes += (replace(mistake, line=0) for mistake in error.mistakes)
            return None


class _Given(PydanticBaseSettingsSource):
    """Values that no source before it has."""

    def __init__(self, settings_cls: type[BaseSettings], given: Mapping[str, object]) -> None:
        super().__init__(settings_cls)
        self._given = given

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of a field, its name, and that it needs no parsing."""
        return self._given.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in self._given.items() if name not in self.current_state}


def variable(name: str) -> Path:
    """The variable of a setting, in the place of a file."""
    return Path(f"{PREFIX}{name.upper()}")


def _of_variable(detail: Any) -> Mistake:
    name, *inside = map(str, detail["loc"])
    return Mistake(variable(name), 0, f"{'.'.join(inside)}: {detail['msg']}" if inside else detail["msg"])
