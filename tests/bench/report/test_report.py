"""`blockdraft bench report` on small results of every measurement."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.published import TPU_V5P_MEAN, TPU_V5P_SPEEDS
from blockdraft_bench.common.statistics import Estimate
from blockdraft_bench.report.choice import decay_by_domain, domain_of, simplest_curves
from blockdraft_bench.report.inputs import Results, find_files, merge, read_source
from blockdraft_bench.report.panels import panels_of
from blockdraft_bench.report.results import AcceptanceRow, KFlatRow
from blockdraft_bench.report.tables import estimate, published_tables, table
from blockdraft_client.cli.main import main

Json = dict[str, Any]
PNG = b"\x89PNG"
ABOUT: Json = {
    "command": "blockdraft bench something",
    "commit": "abc",
    "hardware": {"cpu": "a processor", "cores": 2, "accelerator": None},
    "target": {"name": "tiny", "fingerprint": "0123456789abcdef"},
}


def acceptance() -> Json:
    def row(dataset: str, temperature: float, steps: int, shares: list[float | None]) -> Json:
        return {
            "dataset": dataset, "temperature": temperature, "samples": 4, "steps": steps,
            "acceptance_length": 1.7, "acceptance_length_ci95": [1.5, 2.0],
            "acceptance_per_position": shares, "identical_share": 1.0,
        }  # fmt: skip

    return {
        "benchmark": "acceptance",
        **ABOUT,
        "drafter": {"method": "dflash", "fingerprint": "f", "trained": True},
        "draft_length": 2,
        "results": [
            row("gsm8k", 0.0, 30, [0.6, 0.3]),
            row("math500", 0.0, 10, [0.2, 0.1]),
            row("humaneval", 0.0, 10, [0.9, 0.8]),
            row("mine", 0.0, 0, [None, None]),
            row("gsm8k", 1.0, 30, [0.1, 0.0]),
        ],
    }


def decode() -> Json:
    def row(dataset: str, method: str, speedup: float | None) -> Json:
        return {
            "dataset": dataset, "method": method, "temperature": 0.0, "samples": 4,
            "tokens_per_second": 20.0, "ttft_seconds": 0.25, "speedup": speedup,
            "speedup_ci95": None if speedup is None else [speedup - 0.1, speedup + 0.1],
            "acceptance_length": 2.5, "acceptance_length_ci95": None, "identical_share": 1.0,
        }  # fmt: skip

    rows = [row("gsm8k", "plain", 1.0), row("gsm8k", "dflash", 1.5), row("gsm8k", "eagle3", 1.25)]
    return {"benchmark": "decode", **ABOUT, "results": [*rows, row("alpaca", "plain", 1.0)]}


def kflat() -> Json:
    def rows(device: str, modelled: bool, batch: int, times: list[float]) -> list[Json]:
        return [
            {
                "device": device, "model": "tiny", "modelled": modelled, "batch": batch,
                "context_tokens": 64, "tokens": batch << power, "seconds": time,
                "relative_to_one": time / times[0],
            }
            for power, time in enumerate(times)
        ]  # fmt: skip

    curve = {"device": "cpu", "model": "tiny", "modelled": False, "batch": 1, "context_tokens": 64}
    return {
        "benchmark": "kflat",
        **ABOUT,
        "curves": [{**curve, "explanation": "Verifying is free up to 2 tokens."}],
        "results": [
            *rows("cpu", False, 2, [2.0, 4.0]),
            *rows("cpu", False, 1, [1.0, 1.0, 3.0]),
            *rows("TPU v5p", True, 1, [0.5, 0.5, 0.5]),
        ],
    }


def scaling() -> Json:
    def length(block_size: int, value: float, measured: list[float]) -> Json:
        found = [
            {"source": f"acceptance {i}", "acceptance_length": v, "acceptance_length_ci95": None}
            for i, v in enumerate(measured)
        ]
        return {
            "block_size": block_size, "acceptance_length": value,
            "acceptance_length_ci95": [value - 0.1, value + 0.1], "measured": found,
        }  # fmt: skip

    curve = {"device": "cpu", "model": "tiny", "modelled": False, "batch": 1, "context_tokens": 64}
    sizes = [{"block_size": 4, "speed_up": 1.4}, {"block_size": 8, "speed_up": None}]
    return {
        "benchmark": "scaling",
        **ABOUT,
        "acceptance_lengths": [length(4, 1.9, []), length(8, 2.2, [2.1, 2.3])],
        "results": [{**curve, "predictions": sizes, "conclusion": "Better drafts pay."}],
    }


def serve() -> Json:
    def row(load: float, method: str, latency: float | None) -> Json:
        times = None if latency is None else dict.fromkeys(("p50", "p95", "p99", "mean"), latency)
        return {
            "mode": "closed", "load": load, "method": method, "requests": 8, "failed": 0,
            "output_tokens_per_second": 30.0, "ttft_seconds": times, "tpot_seconds": times,
            "latency_seconds": times, "goodput_requests_per_second": None,
        }  # fmt: skip

    split = {
        "concurrency": 1, "one_process": {"tokens_per_second": 20.0},
        "three_processes": {"tokens_per_second": 19.0}, "ratio": 0.95, "ratio_ci95": [0.9, 1.0],
    }  # fmt: skip
    rows = [row(1, "plain", 2.0), row(1, "drafted", 1.5), row(2.0, "plain", None)]
    return {"benchmark": "serve", **ABOUT, "results": rows, "split": [split]}


def peers() -> Json:
    def row(peer: str, variant: str, ratio: float) -> Json:
        return {
            "peer": peer, "variant": variant, "dtype": "float32", "samples": 4,
            "tokens_per_second": 20.0 * ratio, "ratio_to_plain": ratio,
            "ratio_to_plain_ci95": None, "ratio_to_drafted": ratio / 1.5,
            "ratio_to_drafted_ci95": None, "identical_share": 0.5,
        }  # fmt: skip

    rows = [row("blockdraft", "plain", 1.0), row("transformers", "generate", 0.75)]
    absent = {"peer": "llama.cpp", "skipped": "not installed"}
    return {"benchmark": "peers", **ABOUT, "results": [*rows, absent]}


MAKERS: dict[str, Callable[[], Json]] = {
    made()["benchmark"]: made for made in (acceptance, decode, kflat, scaling, serve, peers)
}
PANELS = {
    "acceptance": "decay", "decode": "speedup", "kflat": "kflat", "scaling": "scaling",
    "serve": "load", "peers": "peers",
}  # fmt: skip


def write(folder: Path, benchmark: str, content: Json | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    path.write_text(json.dumps(content or MAKERS[benchmark]()), encoding="utf-8")
    return path


def results_of(*paths: Path) -> Results:
    return merge(read_source(path) for path in paths)


def test_everything_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in MAKERS:
        write(tmp_path / "in" / f"{name}-today", name)
    output = tmp_path / "out"
    assert main(["bench", "report", str(tmp_path / "in"), "--output", str(output), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert json.loads((output / "report.json").read_text("utf-8")) == summary
    assert summary["panels"] == ["speedup", "decay", "kflat", "scaling", "load", "peers"]
    assert {s["benchmark"]: s["hardware"] for s in summary["sources"]} == dict.fromkeys(
        MAKERS, ABOUT["hardware"]
    )
    figures = {path.name for path in output.glob("*.png")}
    assert figures == {"report.png", *(f"report-{name}.png" for name in PANELS.values())}
    assert all(path.read_bytes().startswith(PNG) for path in output.glob("*.png"))

    page = (output / "report.md").read_text("utf-8")
    assert "| gsm8k | 0 | dflash | 4 | 20.0 | 250 | 1.50x [1.40, 1.60] | 2.50 | 100.0% |" in page
    assert "| gsm8k | math | dflash | 2 | 0 | 4 | 1.70 [1.50, 2.00] | 0.60 0.30 | 100.0% |" in page
    assert "| cpu | tiny | measured | 1 | 64 | 1.00 | 1.00 | 3.00 |" in page
    assert "| cpu | tiny | measured | 2 | 64 |  | 1.00 | 2.00 |" in page
    assert "| 1 | 8 | 2.20 [2.10, 2.30] | prediction |" in page
    assert "| 1 | 8 | 2.30 | acceptance 1 |" in page
    assert "| 1 | cpu | tiny | measured | 1 | 64 | 1.40 | - |" in page
    assert "| 1 at a time | drafted | 8 | 0 | 30.0 | 1500 | 1500 | 1.50 | 1.50 | - |" in page
    assert "| 1 | 20.00 | 19.00 | 0.95 [0.90, 1.00] |" in page
    assert "| 1 | transformers generate | float32 | 4 | 15.0 | 0.75x | 0.50x | 50.0% |" in page
    assert "- cpu, tiny, batch 1, 64 context tokens: Better drafts pay." in page
    assert "- cpu, tiny, batch 1, 64 context tokens: Verifying is free up to 2 tokens." in page
    linked = set(re.findall(r"\]\(([\w-]+\.png)\)", page))
    assert linked == figures


@pytest.mark.parametrize("benchmark", MAKERS)
def test_a_panel_is_there_exactly_when_its_input_is(benchmark: str, tmp_path: Path) -> None:
    alone = results_of(write(tmp_path, benchmark))
    assert [panel.name for panel in panels_of(alone)] == [PANELS[benchmark]]
    rest = results_of(*(write(tmp_path, name) for name in MAKERS if name != benchmark))
    names = {panel.name for panel in panels_of(rest)}
    assert names == set(PANELS.values()) - {PANELS[benchmark]}


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
    results = results_of(*(write(tmp_path, name) for name in MAKERS))
    drawn: dict[str, Any] = {}
    for panel in panels_of(results):
        drawn[panel.name] = Figure().subplots()
        panel.draw(drawn[panel.name], results)
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
    assert flat == {"cpu, tiny, measured": [1, 1, 3], "TPU v5p, tiny, modelled": [1, 1, 1]}
    load = {line.get_label(): list(line.get_xdata()) for line in drawn["load"].lines}
    assert load == {"plain, closed loop": [2.0], "drafted, closed loop": [1.5]}
    lengths = [list(container[0].get_ydata()) for container in drawn["scaling"].containers]
    assert lengths == [[1.9, 2.2], [2.1, 2.3]]
    assert [bar.get_width() for bar in drawn["peers"].patches] == [1.0, 0.75]


def test_domains_pool_their_verifications() -> None:
    def row(dataset: str, steps: int, first: float) -> AcceptanceRow:
        length = Estimate(1.0, None)
        return AcceptanceRow("dflash", 1, dataset, 0.0, 1, steps, length, (first,), 1.0)

    # 30 verifications of which 18 and 10 of which 2: 20 of 40.
    pooled = decay_by_domain([row("mbpp", 5, 0.4), row("gsm8k", 30, 0.6), row("aime24", 10, 0.2)])
    assert [(d.domain, d.steps) for d in pooled] == [("math", 40), ("code", 5)]
    assert [d.per_position[0] for d in pooled] == pytest.approx([0.5, 0.4])
    assert [domain_of(name) for name in ("mt-bench", "swe-bench", "mine")] == [
        "chat", "code", "other",
    ]  # fmt: skip


def test_the_simplest_curve_of_each_device() -> None:
    def point(device: str, batch: int, context: int, tokens: int) -> KFlatRow:
        return KFlatRow(device, "m", False, batch, context, tokens, 1.0, 1.0)

    rows = [
        point("a", 2, 64, 2), point("a", 1, 512, 1), point("a", 1, 64, 2), point("a", 1, 64, 1),
        point("b", 4, 64, 4),
    ]  # fmt: skip
    assert simplest_curves(rows) == [[rows[3], rows[2]], [rows[4]]]


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    text = published_tables(results_of(write(tmp_path, "decode")))
    assert (
        "| gsm8k | 5.40 | 3.17x | 7.32 → 2.31 | 2.50 | 1.50x [1.40, 1.60] | 2.50 |"
        " 1.25x [1.15, 1.35] |" in text
    )
    assert "| alpaca | 2.86 | 1.65x | 6.72 → 4.08 | - | - | - | - |" in text
    # The publisher's means are those of the rows, to the rounding of both.
    for name in ("acceptance_length", "speedup", "plain_tpot_ms", "tpot_ms"):
        values = [getattr(speed, name) for speed in TPU_V5P_SPEEDS]
        assert sum(values) / len(values) == pytest.approx(getattr(TPU_V5P_MEAN, name), abs=0.011)


def test_numbers_and_tables() -> None:
    assert estimate(Estimate(None, None)) == "-"
    assert estimate(Estimate(1.234, (1.0, 1.5)), "x") == "1.23x [1.00, 1.50]"
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert table(["a"], []) == ""


def test_several_runs_of_peers_keep_apart(tmp_path: Path) -> None:
    results = results_of(write(tmp_path / "a", "peers"), write(tmp_path / "b", "peers"))
    assert [row.run for row in results.peers] == [1, 1, 2, 2]


def test_reports_of_acceptance_without_a_name_are_known(tmp_path: Path) -> None:
    content = acceptance()
    del content["benchmark"]
    assert read_source(write(tmp_path, "acceptance", content)).benchmark == "acceptance"


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path, "decode")
    assert find_files([tmp_path, path]) == [path.resolve()]


def change(benchmark: str, edit: Callable[[Json], object]) -> str:
    content = MAKERS[benchmark]()
    edit(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"benchmark": NaN}', "NaN is no JSON number"),
        ("[]", "is no report of blockdraft bench acceptance, decode"),
        ('{"benchmark": "report"}', "is no report of blockdraft bench acceptance, decode"),
        (
            '{"benchmark": "decode"}',
            "no report of blockdraft bench decode: 'results' is missing",
        ),
        ('{"benchmark": "decode", "results": [1]}', "decode: 1 is no JSON object"),
        ('{"benchmark": "decode", "results": 1}', "bench decode: 'int' object"),
        (change("decode", lambda c: c["results"][0].update(samples="4")), "samples is '4'"),
        (change("decode", lambda c: c["results"][0].update(samples=True)), "samples is True"),
        (change("decode", lambda c: c["results"][0].update(speedup_ci95=[1])), "speedup_ci95 is"),
        (change("decode", lambda c: c["results"][1].pop("speedup")), "'speedup' is missing"),
        (change("decode", lambda c: c.update(hardware="fast")), "hardware is 'fast'"),
        (change("acceptance", lambda c: c.update(draft_length=3)), "gsm8k has not 3 positions"),
        (change("acceptance", lambda c: c.pop("drafter")), "'drafter' is missing"),
        (change("kflat", lambda c: c["curves"][0].pop("explanation")), "'explanation' is missing"),
        (change("scaling", lambda c: c.update(results=[{}])), "bench scaling: 'predictions'"),
        (change("serve", lambda c: c["split"][0].pop("one_process")), "'one_process' is missing"),
        (change("peers", lambda c: c["results"][0].pop("dtype")), "'dtype' is missing"),
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
        results_of(*paths)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchUsageError, match="nowhere does not exist"):
        find_files([tmp_path / "nowhere"])
    with pytest.raises(BenchUsageError, match="has no results of a measurement"):
        find_files([tmp_path])
