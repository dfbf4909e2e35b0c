"""Trees of images, as far as no registry is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

from flows.images.grafting.layers import Trees, _remembered
from flows.images.registry import Registry
from flows.settings import Settings
from tests.conftest import PATIENCE


def test_images_of_the_same_layers_do_not_differ(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    trees = Trees(settings, Registry(settings))
    # Nothing is left of a stack when both have the same layers, and only the configuration is another.
    assert trees._differing("stages", (), ()) == frozenset()


def test_what_several_threads_ask_at_once_is_worked_out_by_one() -> None:
    asked, begun, go_on = list[str](), Semaphore(0), Event()

    def work(question: str) -> str:
        asked.append(question)
        begun.release()
        assert go_on.wait(PATIENCE)
        return question.upper()

    remembered = _remembered(2, work)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(remembered, question) for question in ("a", "b", "a", "a")]
        assert begun.acquire(timeout=PATIENCE) and begun.acquire(timeout=PATIENCE)
        go_on.set()
        assert [answer.result() for answer in answers] == ["A", "B", "A", "A"]
    assert sorted(asked) == ["a", "b"]
