"""What a step gained is told while the next one computes, unless that has to wait for drafts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from tests.verifier.support import (
    MadeUpRunner,
    engine_over,
    finish,
    link_to,
)

from blockdraft_verifier.device.step_runner import StepResult
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.scheduler import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest

REQUEST = GenerationRequest("", (1, 2, 3), max_output_tokens=4)


@dataclass
class Diary:
    """What happened, in order."""

    entries: list[str] = field(default_factory=list)

    def hear(self, event: TokensGained) -> None:
        self.entries.append("end" if event.finish_reason is not None else "told")


class WritingRunner(MadeUpRunner):
    """Writes down when its steps begin and end; may fail."""

    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self.diary = diary
        self.failing = False

    def run(self, rows: Sequence[Row], meanwhile: Callable[[], None] = lambda: None) -> StepResult:
        self.diary.entries.append("begins")
        result = super().run(rows, meanwhile)
        if self.failing:
            raise RuntimeError("the device is gone")
        self.diary.entries.append("ends")
        return result


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def engine(diary: Diary) -> Iterator[Engine]:
    engine = engine_over(WritingRunner(diary))
    yield engine
    engine.stop()


def test_a_step_is_told_during_the_next_and_the_last_at_once(engine: Engine, diary: Diary) -> None:
    engine.submit(REQUEST, diary.hear)
    finish(engine)
    during = ["begins", "told", "ends"]
    assert diary.entries == ["begins", "ends", *during * 3, "end"]


def test_listeners_are_called_before_waiting_for_drafts(diary: Diary) -> None:
    def draft(position: int, anchor: int, length: int) -> list[int]:
        diary.entries.append("drafts")
        return [0] * length

    engine = engine_over(WritingRunner(diary), link=link_to(draft))
    engine.submit(REQUEST, diary.hear)
    finish(engine)
    engine.stop()
    assert "drafts" in diary.entries
    told = [index for index, entry in enumerate(diary.entries) if entry == "told"]
    # The last token but one needs no draft: nothing keeps the step after it waiting.
    for index in told[:-1]:
        assert diary.entries[index - 1] == "drafts", diary.entries


def test_a_cancelled_sequence_hears_no_more(engine: Engine, diary: Diary) -> None:
    sequence = engine.submit(REQUEST, diary.hear)
    other = Diary()
    engine.submit(GenerationRequest("", (4, 5), max_output_tokens=3), other.hear)
    engine.step()
    engine.cancel(sequence)
    finish(engine)
    assert "told" not in diary.entries
    assert other.entries == ["told", "told", "end"]
    assert not engine.load().used_pages


def test_what_was_gained_before_a_failure_is_told(engine: Engine, diary: Diary) -> None:
    heard: list[TokensGained] = []
    engine.submit(REQUEST, heard.append)
    engine.step()
    assert not heard
    runner = engine._runner
    assert isinstance(runner, WritingRunner)
    runner.failing = True
    engine._run()
    assert [bool(event.failure) for event in heard] == [False, True]
    assert len(heard[0].token_ids) == 1


def test_pages_of_an_ended_sequence_are_free_before_it_is_told(engine: Engine) -> None:
    free: list[int] = []
    engine.submit(REQUEST, lambda event: free.append(engine.load().used_pages))
    finish(engine)
    assert free[-1] == 0
