"""Target and drafter on the same eight devices, launched by two threads."""

from pathlib import Path

from tests.hosted.pair import completions


def test_drafting_never_changes_a_completion(tmp_path: Path) -> None:
    plain, none = completions(tmp_path / "plain", None)
    hosted, drafted = completions(tmp_path / "hosted", "random:3")
    assert hosted == plain
    assert none == 0 < drafted
