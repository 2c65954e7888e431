"""What a step gained is told while the next one computes, unless that has to wait for drafts."""

import threading

import pytest
from tests.fakes.engine import FakeRunner
from tests.patience import PATIENCE_SECONDS
from tests.verifier.support import engine_over, finish, link_to

from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

REQUEST = GenerationRequest("", (1, 2, 3), max_output_tokens=4)


class Diary(list[str]):
    """What happened, in order."""

    def hear(self, event: TokensGained) -> None:
        self.append("end" if event.finish_reason is not None else "told")


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def engine(diary: Diary) -> Engine:
    return engine_over(FakeRunner(on_step=diary.append))


def test_a_step_is_told_during_the_next_and_the_last_at_once(engine: Engine, diary: Diary) -> None:
    engine.submit(REQUEST, diary.hear)
    finish(engine)
    during = ["begins", "told", "ends"]
    assert diary == ["begins", "ends", *during * 3, "end"]


def test_listeners_are_called_before_waiting_for_drafts(diary: Diary) -> None:
    def draft(position: int, anchor: int, length: int) -> list[int]:
        diary.append("drafts")
        return [0] * length

    engine = engine_over(FakeRunner(on_step=diary.append), link=link_to(draft))
    engine.submit(REQUEST, diary.hear)
    finish(engine)
    assert "drafts" in diary
    told = [index for index, entry in enumerate(diary) if entry == "told"]
    # The last token but one needs no draft: nothing keeps the step after it waiting.
    for index in told[:-1]:
        assert diary[index - 1] == "drafts", diary


def test_a_cancelled_sequence_hears_no_more(engine: Engine, diary: Diary) -> None:
    sequence = engine.submit(REQUEST, diary.hear)
    other = Diary()
    engine.submit(GenerationRequest("", (4, 5), max_output_tokens=3), other.hear)
    engine.step()
    engine.cancel(sequence)
    finish(engine)
    assert "told" not in diary
    assert other == ["told", "told", "end"]
    assert not engine.load().used_pages


def test_what_was_gained_before_a_failure_is_told() -> None:
    def fail_in_the_second(when: str) -> None:
        if when == "ends" and runner.steps[1:]:
            raise RuntimeError("the device is gone")

    runner = FakeRunner(on_step=fail_in_the_second)
    engine, heard, failed = engine_over(runner), list[TokensGained](), threading.Event()

    def hear(event: TokensGained) -> None:
        heard.append(event)
        if event.failure:
            failed.set()

    engine.submit(REQUEST, hear)
    engine.start()
    assert failed.wait(PATIENCE_SECONDS)
    engine.stop()
    assert [bool(event.failure) for event in heard] == [False, True]
    assert len(heard[0].token_ids) == 1


def test_pages_of_an_ended_sequence_are_free_before_it_is_told(engine: Engine) -> None:
    free: list[int] = []
    engine.submit(REQUEST, lambda event: free.append(engine.load().used_pages))
    finish(engine)
    assert free[-1] == 0
