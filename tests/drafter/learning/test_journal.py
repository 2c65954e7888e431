"""The trainer's journal as the drafter shows it: whatever lies there, and however it is counted."""

import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.metrics import LearningMetrics


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert Journal.read(tmp_path) == Journal()
    journal = Journal(parent=3, total_steps=7, stepped_at=1.5, loss=0.25, tau=2.0)
    journal.write(tmp_path / "new")
    assert Journal.read(tmp_path / "new") == journal
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["journal.json"]


def test_an_older_one_lacks_fields_and_a_newer_one_has_more(tmp_path: Path) -> None:
    told = '{"steps": 4, "rate": 0.5, "loss": null, "of_the_future": [1]}'
    (tmp_path / "journal.json").write_text(told, encoding="utf-8")
    assert Journal.read(tmp_path) == Journal(steps=4, rate=0.5)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b'{"steps": ',
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"7",
        b"[" * 60_000,
        b'{"steps": "4"}',
        b'{"steps": -4}',
        b'{"steps": 4.5}',
        b'{"steps": true}',
        b'{"steps": null}',
        b'{"loss": NaN}',
        b'{"waited_seconds": 1e999}',
        b'{"total_steps": ' + b"9" * 400 + b"}",
        b'{"steps": 4}' + b" " * (1 << 16),
    ],
    ids=range(15),
)
def test_what_is_no_journal_is_not_read(tmp_path: Path, told: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(told)
    assert Journal.read(tmp_path) is None


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_holds_nobody_up(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "journal.json")
    assert Journal.read(tmp_path) is None


class Shown:
    """What the metrics say."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = LearningMetrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"blockdraft_drafter_learning_{name}", labels)


def test_what_was_done_before_is_not_counted_and_what_is_read_twice_only_once() -> None:
    shown = Shown()
    for steps in (1000, 1000, 1007):
        journal = Journal(
            total_steps=steps,
            steps=steps - 990,
            thrown_away=steps - 1000,
            total_evaluations=2,
            promoted=1,
            started_over=steps // 1007,
            waited_seconds=steps / 2,
            stepped_at=12.5,
            tau=2.5,
            current_tau=2.25,
            loss=1.5,
            samples_refused=3,
        )
        shown.metrics.learned(journal)
    assert shown("steps_total") == 7
    assert shown("thrown_away_steps_total") == 7
    assert shown("evaluations_total") == shown("candidates_total", outcome="promoted") == 0
    assert shown("candidates_total", outcome="given_up") == 1
    assert shown("waited_seconds_total") == 3.5
    assert shown("candidate_steps") == 17
    assert shown("last_step_timestamp_seconds") == 12.5
    assert shown("held_out_tau", drafter="candidate") == 2.5
    assert shown("held_out_tau", drafter="serving") == 2.25
    assert shown("loss") == 1.5
    assert shown("refused_samples") == 3


def test_a_trainer_that_begins_while_the_drafter_watches_counts_from_its_first_step() -> None:
    shown = Shown()
    shown.metrics.learned(Journal())
    shown.metrics.learned(Journal(total_steps=5, waited_seconds=8.0))
    # Cleared, or started again.
    shown.metrics.learned(Journal(total_steps=2, waited_seconds=1.0))
    assert shown("steps_total") == 7
    assert shown("waited_seconds_total") == 9
