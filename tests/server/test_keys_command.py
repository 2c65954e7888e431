from pathlib import Path

import pytest

from blockdraft_client.cli.main import main
from blockdraft_server.keys import digest_of, parse_keys


def test_prints_a_key_and_the_line_that_lets_it_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "acme", "--max-requests", "4"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert key not in line
    tenant = parse_keys(line)[digest_of(key)]
    assert (tenant.name, tenant.max_requests, tenant.max_tokens) == ("acme", 4, None)


def test_adds_to_a_file_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    keys = parse_keys(path.read_text())
    assert keys[digest_of(first)] == keys[digest_of(second)]
    assert first not in path.read_text()


def test_refuses_what_would_break_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    before = path.read_text()
    assert main(["keys", "new", "acme", "--max-tokens", "9", "--file", str(path)]) == 2
    assert "other limits" in capsys.readouterr().err
    assert main(["keys", "new", "no name"]) == 2
    assert path.read_text() == before
