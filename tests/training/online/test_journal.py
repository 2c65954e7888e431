"""The trainer's journal, on disk and as metrics."""

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from blockdraft_training.online.journal import Journal
from blockdraft_training.online.metrics import TrainerMetrics


def test_what_is_written_is_read_and_newer_or_older_fields_are_passed_over(tmp_path: Path) -> None:
    assert Journal.read(tmp_path) == Journal()
    journal = Journal(parent=3, total_steps=7, stepped_at=1.5, loss=0.25, tau=2.0)
    journal.write(tmp_path / "new")
    assert Journal.read(tmp_path / "new") == journal
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["journal.json"]
    text = '{"steps": 4, "rate": 0.5, "loss": null, "of_the_future": [1]}'
    (tmp_path / "journal.json").write_text(text, encoding="utf-8")
    assert Journal.read(tmp_path) == Journal(steps=4, rate=0.5)


@pytest.mark.parametrize(
    "text", [b"", b'{"steps": ', b"\xff\xfe\x00", b"[1, 2]", b"7", b"[" * 60_000], ids=range(6)
)
def test_a_damaged_journal_begins_anew(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(text)
    assert Journal.read(tmp_path) == Journal()


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.json")
    assert Journal.read(tmp_path) == Journal()


def test_steps_of_the_process_before_are_not_counted_and_readings_are_shown() -> None:
    registry, journal = CollectorRegistry(), Journal(total_steps=1000, promoted=1)
    metrics = TrainerMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"blockdraft_trainer_{name}", labels)

    metrics.publish(journal)
    assert value("steps_total") == 0
    journal.total_steps, journal.started_over, journal.tau = 1007, 2, 2.5
    for _ in range(2):
        metrics.publish(journal)
    assert value("steps_total") == 7
    assert value("candidates_total", outcome="promoted") == 0
    assert value("candidates_total", outcome="given_up") == 2
    assert value("held_out_tau", drafter="candidate") == 2.5
    assert value("held_out_tau", drafter="serving") == 0
