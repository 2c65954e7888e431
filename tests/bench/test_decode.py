"""`blockdraft bench decode`, from the command line to the files, mostly by a made-up service."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bench.support import decoded_answer, decoded_set
from tests.fakes.inference import MODEL, TOKEN_IDS, RunningFake, running_fake

from blockdraft_bench import decode
from blockdraft_bench.decode import averages, divergence_line, speed_table, summaries
from blockdraft_bench.service import RunningService, ServiceConnection
from blockdraft_bench.statistics import Estimate
from blockdraft_bench.store import ResultStore
from blockdraft_protos.v1.inference_pb2 import GetModelResponse

SMALL = (
    "decode --target target --block-size 4 --max-prompt-tokens 64"
    " --max-tokens 40 --samples 2 --dataset gsm8k"
)
Run = Callable[..., int]


@pytest.mark.slow
def test_measures_a_service_of_each_drafter(
    reported: Callable[..., tuple[dict[str, Any], Path]],
) -> None:
    flags = ("--draft-policy", "fixed", "--temperature", "0", "1", "--no-prompt-lookup")
    report, output = reported("--drafter", "random:1", "none", *flags, "--concurrency", "2")
    assert report["target"]["name"].startswith("target")
    assert report["dtype"] == "float32"
    assert list(report["drafters"]) == ["random:1"]
    assert report["drafters"]["random:1"]["block_size"] == 4
    rows = report["results"]
    assert [(row["temperature"], row["method"]) for row in rows] == [
        (0.0, "plain"), (0.0, "random:1"), (1.0, "plain"), (1.0, "random:1")
    ]  # fmt: skip
    for row in rows:
        assert (row["samples"], row["tokens"]) == (2, 80)
        assert row["identical_share"] == 1.0
        assert row["divergences"] == []
        assert row["tokens_per_second"] > 0
        if row["method"] == "plain":
            assert row["acceptance_per_position"] == []
            assert row["acceptance_length"] == 1.0
        else:
            # The policy is fixed: but for the end of a completion, a draft is a whole block.
            assert 2.5 < row["mean_draft_length"] <= 3.0
            assert len(row["acceptance_per_position"]) == 3
    page = (output / "decode.md").read_text("utf-8")
    assert "untrained dflash drafter (" in page
    assert "Every completion is that of plain decoding" in page


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningFake]:
    """Have a made-up service in place of those that would be started; note their arguments."""
    with running_fake() as running:

        @contextlib.contextmanager
        def service(arguments: Sequence[str]) -> Iterator[RunningService]:
            connection = ServiceConnection(running.target, "", False, 60.0)
            with connection.client() as client:
                yield RunningService(connection, client.model())

        monkeypatch.setattr(decode, "own_service", service)
        yield running


def test_figures_are_those_of_the_usage(
    fake: RunningFake, reported: Callable[..., tuple[dict[str, Any], Path]]
) -> None:
    report, output = reported(
        "--drafter", "random", "--draft-length", "3", "--top-p", "0.5", "--temperature", "1"
    )
    plain, drafted = report["results"]
    assert [row["method"] for row in (plain, drafted)] == ["plain", "random"]
    # Six tokens, five of them in 2.5 s; two verifications (see `USAGE`).
    assert drafted["tokens"] == 2 * len(TOKEN_IDS)
    assert drafted["tokens_per_second"] == pytest.approx(5 / 2.5)
    assert drafted["acceptance_length"] == pytest.approx(5 / 2)
    assert drafted["acceptance_per_position"] == [1.0, 0.5, 0.0, 0.0]
    assert drafted["mean_draft_length"] == 4.0
    # Two completions are too few for an interval.
    assert (drafted["speedup"], drafted["speedup_ci95"]) == (1.0, None)
    requests = [one for one in fake.service.requests if hasattr(one, "sampling")]
    # Each way once before the clock runs; which one comes first rotates.
    orders = [request.speculation.disabled for request in requests]
    assert orders == [True, False, True, False, False, True]
    for request in requests:
        assert request.sampling.top_p == 0.5
        if not request.speculation.disabled:
            assert request.speculation.max_draft_tokens == 3
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_bytes().splitlines()]
    assert [list(line["record"]) for line in lines] == [["plain", "random"], ["random", "plain"]]


def test_a_draft_longer_than_a_block_is_refused(
    fake: RunningFake, bench: Run, refused: Callable[[int, int, str], None]
) -> None:
    message = "the draft length must be 1 to 7, a block of 8 less its anchor; got 8"
    refused(bench("--drafter", "random", "--draft-length", "8", "--no-prompt-lookup"), 2, message)


def test_an_interrupted_run_of_plain_decoding_alone_goes_on(
    fake: RunningFake,
    bench: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.service.model = GetModelResponse()
    fake.service.model.CopyFrom(MODEL)
    fake.service.model.ClearField("drafter")
    arguments = ["--drafter", "none", "--no-prompt-lookup", "--output", str(tmp_path / "out")]
    add = ResultStore.add

    def add_then_interrupt(self: ResultStore[Any], key: Any, record: Any) -> None:
        add(self, key, record)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ResultStore, "add", add_then_interrupt)
        assert bench(*arguments) == 130
    printed = capsys.readouterr()
    assert not printed.out
    assert "goes on from here" in printed.err
    kept = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert len(kept.splitlines()) == 1
    assert not (tmp_path / "out" / "decode.json").exists()

    # At one temperature more: only what is new is decoded.
    assert bench(*arguments, "--temperature", "0", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafters"] == {}
    result, sampled = report["results"]
    assert (result["method"], result["samples"]) == ("plain", 2)
    assert (result["temperature"], sampled["temperature"]) == (0.0, 1.0)
    assert (result["speedup"], result["speedup_completions"]) == (1.0, 2)
    samples = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert samples.startswith(kept)
    assert len(samples.splitlines()) == 4


# Plain: 4 tokens in 2 s. Drafted: 4 tokens in 1 s, and in 0.5 s with another fourth token.
PLAIN = decoded_answer(2.0, (1, 2, 3, 4, 5), *[(0, 0)] * 4)
SAMPLES = decoded_set(
    {"plain": PLAIN, "dflash": decoded_answer(1.0, (1, 2, 3, 4, 5), (3, 2), (1, 0))},
    {"plain": PLAIN, "dflash": decoded_answer(0.5, (1, 2, 3, 9, 5), (3, 3))},
)


def test_table() -> None:
    rows, means = summaries([SAMPLES], seed=0), averages([SAMPLES], seed=0)
    headings, _, plain, drafted, mean = speed_table(rows, means).splitlines()
    assert headings == (
        "| Dataset | T | Method | Completions | TPOT ms | tok/s | τ | speed-up | identical |"
    )
    assert plain == "| hand | 0 | plain | 2 | 500.0 | 2.0 |  |  |  |"
    # 4 s over 1.5 s; two completions are too few for an interval.
    assert drafted == "| hand | 0 | dflash | 2 | 187.5 | 5.3 | 2.67 | 2.67x | 50.0% |"
    assert mean == "| mean | 0 | dflash |  |  |  | 2.67 | 2.67x | 50.0% |"
    sure = {**rows[1], "speedup": Estimate(8 / 3, (2.0, 4.0), 8)}
    assert "| 2.67x [2.00, 4.00; n = 8] |" in speed_table([sure], [])
    assert divergence_line(rows) == "1 of 2 completions are not those of plain decoding."
    assert divergence_line(rows[:1]) == "No drafter was measured."


def test_plain_decoding_is_a_row_once_and_every_drafter_has_its_own_to_compare_with() -> None:
    slower = decoded_answer(4.0, (1, 2, 3, 4, 5), *[(0, 0)] * 4)
    other = decoded_set({"plain": slower, "eagle3": decoded_answer(1.0, (1, 2, 3, 4, 5), (4, 4))})
    rows = summaries([SAMPLES, other], seed=0)
    assert [row["method"] for row in rows] == ["plain", "dflash", "eagle3"]
    assert [row["speedup"].value for row in rows] == pytest.approx([1.0, 8 / 3, 4.0])
