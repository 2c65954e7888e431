"""Whole lines, whatever happens."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blockdraft_training.corpus.lines import LineFile
from blockdraft_training.errors import CorpusError


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writes beyond `size` bytes fail half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for line in ("one", "zwölf"):
        with LineFile(path) as file:
            file.append(line)
            # Not held back in the process: it might be killed.
            assert path.read_text("utf-8").endswith(f"{line}\n")
    assert path.read_text("utf-8") == "one\nzwölf\n"


@pytest.mark.parametrize("whole", ["", "one\n", "one\ntwo\n"])
@pytest.mark.parametrize("rest", ["", "half", "x" * 200_000])
def test_a_line_cut_short_is_dropped(tmp_path: Path, whole: str, rest: str) -> None:
    path = tmp_path / "lines"
    path.write_text(whole + rest)
    with LineFile(path) as file:
        assert path.read_text() == whole
        file.append("last")
    assert path.read_text() == f"{whole}last\n"


def test_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with LineFile(path) as file:
        file.append("one")
        with largest_file(10), pytest.raises(CorpusError, match=r"cannot write .* goes on from"):
            file.append("a line that does not fit")
        assert path.read_text() == "one\n"
        file.append("two")
    assert path.read_text() == "one\ntwo\n"


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with LineFile(path), pytest.raises(CorpusError, match="being written by another process"):
        LineFile(path)
    with LineFile(path):
        pass
