"""`blockdraft bench report` on the files of several results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blockdraft_bench.command import MEASUREMENTS
from blockdraft_bench.report import TITLES
from blockdraft_client.cli.main import main


def write(folder: Path, name: str, page: str, *, figure: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name}), encoding="utf-8")
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    if figure:
        path.with_suffix(".png").write_bytes(page.encode())
    return path


def test_everything_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, output = tmp_path / "in", tmp_path / "out"
    write(results / "b", "serve", "Serving.\n", figure=True)
    write(results / "b" / "deep", "decode", "Second.\n", figure=True)
    first = write(results / "a", "decode", "First.\n")
    # A file that is found twice counts once.
    assert main(["bench", "report", str(results), str(first), "--output", str(output)]) == 0
    printed = capsys.readouterr()
    assert printed.out == (output / "report.md").read_text("utf-8")
    assert printed.out == (
        "# Benchmarks\n\n## Decoding speed\n\nFirst.\n\nSecond.\n\n"
        "![Decoding speed](decode-2.png)\n\n"
        "## A service under load\n\nServing.\n\n![A service under load](serve-1.png)\n"
    )
    assert (output / "decode-2.png").read_bytes() == b"Second.\n"
    assert (output / "serve-1.png").read_bytes() == b"Serving.\n"
    assert f"written to {output}" in printed.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no results of a measurement"),
        ("{", "cannot be read"),
        ("[]", "is no report of blockdraft bench decode, kflat"),
        ('{"benchmark": "other"}', "is no report of blockdraft bench decode, kflat"),
        ('{"benchmark": "decode"}', "has no page beside it, decode.md"),
    ],
)
def test_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "decode.json").write_text(content, encoding="utf-8")
    assert main(["bench", "report", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out
    assert not (tmp_path / "out").exists()


def test_every_measurement_has_a_title() -> None:
    assert set(TITLES) == {measurement.name for measurement in MEASUREMENTS}


def test_help_and_reports_need_neither_jax_nor_matplotlib(tmp_path: Path) -> None:
    write(tmp_path, "decode", "Page.\n")
    code = (
        "import sys; from blockdraft_client.cli.main import main;"
        f"main(['bench', 'report', {str(tmp_path)!r}, '--output', {str(tmp_path / 'out')!r}]);"
        "sys.exit(any(name in sys.modules for name in ('jax', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
