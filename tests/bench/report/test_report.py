"""`blockdraft bench report` on small results of every measurement."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tests.bench.report.made_up import MAKERS, Json, acceptance, decode, earlier

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.record import from_json
from blockdraft_bench.decode.report import DecodeReport
from blockdraft_bench.kflat.report import KFlatReport, StepTime
from blockdraft_bench.report import sources
from blockdraft_bench.report.acceptance import Shares, domain_of, pool_by_domain
from blockdraft_bench.report.decode import greedy_drafted
from blockdraft_bench.report.kflat import simplest_curves
from blockdraft_bench.report.published import PUBLISHED, published_tables
from blockdraft_bench.report.section import Panel
from blockdraft_bench.report.sources import find_files, read_source, reports_of
from blockdraft_client.cli.main import main

PNG = b"\x89PNG"
# As results of before say it, which did not know of instructions.
HARDWARE = {"cpu": "a processor", "cores": 2, "accelerator": None, "instructions": None}
PANELS = {
    "acceptance": "decay", "decode": "speedup", "kflat": "kflat", "scaling": "scaling",
    "serve": "load", "peers": "peers",
}  # fmt: skip


def write(folder: Path, benchmark: str, content: Json | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    path.write_text(json.dumps(content or MAKERS[benchmark]()), encoding="utf-8")
    return path


def panels_of(*paths: Path) -> dict[str, Panel]:
    panels = sources.panels_of(reports_of(read_source(path) for path in paths))
    return {panel.name: panel for panel in panels}


def test_everything_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in MAKERS:
        write(tmp_path / "in" / f"{name}-today", name)
    output = tmp_path / "out"
    assert main(["bench", "report", str(tmp_path / "in"), "--output", str(output), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert json.loads((output / "report.json").read_text("utf-8")) == summary
    assert summary["panels"] == ["speedup", "decay", "kflat", "scaling", "load", "peers"]
    held = {source["file"]: source["report"] for source in summary["sources"]}
    assert {name: report["hardware"] for name, report in held.items()} == {
        f"{name}.json": HARDWARE for name in MAKERS
    }
    assert [row["tokens"] for row in held["kflat.json"]["results"]] == [2, 4, 1, 2, 4, 1, 2, 4]
    figures = {path.name for path in output.glob("*.png")}
    assert figures == {"report.png", *(f"report-{name}.png" for name in PANELS.values())}
    assert all(path.read_bytes().startswith(PNG) for path in output.glob("*.png"))

    page = (output / "report.md").read_text("utf-8")
    length = "1.70 [1.50, 2.00; n = 8]"
    assert "| decode | tiny (0123456789abcdef) | a processor | abc | `blockdraft bench som" in page
    assert "| 20.0 | 2.50 | 1.50x [1.40, 1.60; n = 8] | 100.0% |" in page
    assert f"| gsm8k | 0 | 8 | 30 | {length} | 0.60 0.30 | 100.0% |" in page
    assert re.search(r"\| cpu \| tiny \| 1 \| 64 \|.*\| 1.00 \| 1.00 \| 3.00 \|", page)
    assert "| 8 | 2.20 [2.10, 2.30] | 2.10; 2.30 |" in page
    assert "| cpu | tiny | 64 | 1.40x | - |" in page
    assert "| 1 at a time | drafted | 8 | 0 | 30.0 | 1.50 / 1.50 / 1.50 | 1500 / 1500" in page
    assert "| 1 | 8 | 20.00 | 19.00 | 0.950 [0.900, 1.000; n = 8] |" in page
    assert "| llama.cpp plain | Q8_0 | 26.7 (25.7 to 27.7) | 0.75x (0.65 to 0.85) | 1.12x" in page
    assert "- cpu, tiny, batch 1, 64 context tokens: Better drafts pay." in page
    assert "- cpu, tiny, batch 1, 64 context tokens: Verifying is free up to 2 tokens." in page
    linked = set(re.findall(r"\]\(([\w-]+\.png)\)", page))
    assert linked == figures


@pytest.mark.parametrize("benchmark", MAKERS)
def test_a_panel_is_there_exactly_when_its_input_is(benchmark: str, tmp_path: Path) -> None:
    assert list(panels_of(write(tmp_path, benchmark))) == [PANELS[benchmark]]
    rest = panels_of(*(write(tmp_path, name) for name in MAKERS if name != benchmark))
    assert set(rest) == set(PANELS.values()) - {PANELS[benchmark]}


def test_results_that_show_nothing_have_no_panel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = decode()
    plain["results"] = [row for row in plain["results"] if row["method"] == "plain"]
    unmeasured = acceptance()
    unmeasured["results"] = [row for row in unmeasured["results"] if row["dataset"] == "mine"]
    write(tmp_path / "in", "decode", plain)
    write(tmp_path / "in", "acceptance", unmeasured)
    output = tmp_path / "out"
    assert main(["bench", "report", str(tmp_path / "in"), "--output", str(output)]) == 0
    page = capsys.readouterr().out
    assert (output / "report.md").read_text("utf-8") == page
    assert "## Decoding speed" in page
    assert ".png" not in page
    assert not list(output.glob("*.png"))


def test_what_the_panels_draw(tmp_path: Path) -> None:
    drawn: dict[str, Any] = {}
    for name, panel in panels_of(*(write(tmp_path, name) for name in MAKERS)).items():
        drawn[name] = Figure().subplots()
        panel.draw(drawn[name])
    heights = [patch.get_height() for patch in drawn["speedup"].patches]
    assert heights == [1.5, 1.25]
    [published] = [line for line in drawn["speedup"].lines if line.get_marker() == "D"]
    assert list(published.get_ydata()) == [3.17]
    decay = {line.get_label(): list(line.get_ydata()) for line in drawn["decay"].lines}
    assert decay == {
        "math, dflash, 2 drafted": pytest.approx([0.5, 0.25]),
        "code, dflash, 2 drafted": pytest.approx([0.9, 0.8]),
    }
    flat = {line.get_label(): list(line.get_ydata()) for line in drawn["kflat"].lines}
    assert flat == {"cpu, tiny": [1, 1, 3], "TPU v5p (modelled), tiny": [1, 1, 1]}
    load = {line.get_label(): list(line.get_xdata()) for line in drawn["load"].lines}
    assert load == {"plain, closed loop": [2.0], "drafted, closed loop": [1.5]}
    lengths = [list(container[0].get_ydata()) for container in drawn["scaling"].containers]
    assert lengths == [[1.9, 2.2], [2.1, 2.3]]
    assert [bar.get_width() for bar in drawn["peers"].patches] == [1.5, 1.125]


def test_domains_pool_their_verifications() -> None:
    def row(dataset: str, steps: int, first: float, temperature: float = 0.0) -> Shares:
        return Shares("dflash", dataset, temperature, steps, (first,))

    rows = [row("mbpp", 5, 0.4), row("gsm8k", 30, 0.6), row("aime24", 10, 0.2)]
    # 30 verifications of which 18 and 10 of which 2: 20 of 40.
    pooled = pool_by_domain([*rows, row("gsm8k", 10, 0.0, temperature=1.0)])
    assert [(d.about, d.steps) for d in pooled] == [("math", 40), ("code", 5)]
    assert [d.per_position[0] for d in pooled] == pytest.approx([0.5, 0.4])
    assert [domain_of(name) for name in ("mt-bench", "swe-bench", "mine")] == [
        "chat", "code", "other",
    ]  # fmt: skip


def test_the_simplest_curve_of_each_device() -> None:
    [base] = from_json(KFlatReport, json.dumps(earlier("kflat"))).results

    def point(device: str, batch: int, context: int, tokens: int) -> StepTime:
        return replace(base, device=device, batch=batch, context_tokens=context, tokens=tokens)

    rows = [
        point("a", 2, 64, 2), point("a", 1, 512, 1), point("a", 1, 64, 2), point("a", 1, 64, 1),
        point("b", 4, 64, 4),
    ]  # fmt: skip
    assert simplest_curves(rows) == [[rows[3], rows[2]], [rows[4]]]


def test_published_numbers_stand_beside_ours() -> None:
    report = from_json(DecodeReport, json.dumps(decode()))
    text = published_tables(greedy_drafted([report]))
    assert (
        "| gsm8k | 5.40 | 3.17x | 7.32 → 2.31 | 2.50 | 1.50x [1.40, 1.60; n = 8] | 2.50 |"
        " 1.25x [1.15, 1.35; n = 8] |" in text
    )
    assert "| alpaca | 2.86 | 1.65x | 6.72 → 4.08 | - | - | - | - |" in text
    # The publisher's means are those of the rows, to the rounding of both.
    for name in ("acceptance_length", "speedup", "plain_tpot_ms", "tpot_ms"):
        values = [getattr(speed, name) for speed in PUBLISHED.tpu_v5p_speeds]
        mean = getattr(PUBLISHED.tpu_v5p_mean, name)
        assert sum(values) / len(values) == pytest.approx(mean, abs=0.011)


def test_several_runs_of_peers_keep_apart(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", "peers"), write(tmp_path / "b", "peers")]
    axes = Figure().subplots()
    panels_of(*files)["peers"].draw(axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "1: blockdraft\nplain, bfloat16", "1: llama.cpp\nplain, Q8_0",
        "2: blockdraft\nplain, bfloat16", "2: llama.cpp\nplain, Q8_0",
    ]  # fmt: skip


def test_reports_of_acceptance_without_a_name_are_known(tmp_path: Path) -> None:
    content = acceptance()
    del content["benchmark"]
    assert read_source(write(tmp_path, "acceptance", content)).report.benchmark == "acceptance"


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path, "decode")
    assert find_files([tmp_path, path]) == [path.resolve()]


@pytest.mark.parametrize("benchmark", MAKERS)
def test_results_are_read_without_jax_and_matplotlib(benchmark: str) -> None:
    code = (
        f"import blockdraft_bench.{benchmark}.report, sys\n"
        "sys.exit(len({'jax', 'matplotlib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def change(benchmark: str, edit: Callable[[Json], object]) -> str:
    content = MAKERS[benchmark]()
    edit(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"benchmark": NaN}', "cannot be read: JSON is malformed"),
        ("[]", "is no report of blockdraft bench decode, acceptance"),
        ('{"benchmark": "report"}', "is no report of blockdraft bench decode, acceptance"),
        (
            '{"benchmark": "decode"}',
            "no report of blockdraft bench decode: Object missing required field",
        ),
        (change("decode", lambda c: c.update(results=[1])), "Expected `object`, got `int`"),
        (change("decode", lambda c: c.update(results=1)), "Expected `array`, got `int`"),
        (change("decode", lambda c: c["results"][0].update(samples="4")), "$.results[0].samples"),
        (change("decode", lambda c: c["results"][0].update(samples=True)), "$.results[0].samples"),
        (change("decode", lambda c: c["results"][0].update(speedup_ci95=[1])), "speedup"),
        (change("decode", lambda c: c["results"][1].pop("identical_share")), "`identical_share`"),
        (change("decode", lambda c: c.update(hardware="fast")), "$.hardware"),
        (change("acceptance", lambda c: c.update(draft_length=3)), "gsm8k has not 3 positions"),
        (change("acceptance", lambda c: c.pop("drafter")), "`drafter`"),
        (change("kflat", lambda c: c["curves"][0].pop("explanation")), "`explanation`"),
        (change("scaling", lambda c: c.update(results=[{}])), "$.results[0]"),
        (change("serve", lambda c: c["split"][0].pop("one_process")), "`one_process`"),
        (change("peers", lambda c: c["results"][0].pop("dtype")), "$.results[0]"),
    ],
)
def test_damaged_and_foreign_files_are_named(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    path.write_text(text, encoding="utf-8")
    output = tmp_path / "out"
    assert main(["bench", "report", str(path), "--output", str(output)]) == 2
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert line.startswith("blockdraft bench: ")
    assert "some.json" in line
    assert message in line
    assert not printed.out
    assert not output.exists()


def test_the_same_twice_is_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, "decode") for name in ("a", "b")]
    with pytest.raises(BenchUsageError, match=r"a/decode.json and .*b/decode.json both have"):
        panels_of(*paths)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchUsageError, match="nowhere does not exist"):
        find_files([tmp_path / "nowhere"])
    with pytest.raises(BenchUsageError, match="has no results of a measurement"):
        find_files([tmp_path])
