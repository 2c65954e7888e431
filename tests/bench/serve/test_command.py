"""`blockdraft bench serve` from the command line to the files, with real services."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from tests.fakes.inference import MODEL, running_fake
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_bench.service import own_service
from blockdraft_client.cli import local_server
from blockdraft_models.decoder.model import Decoder
from blockdraft_protos.v1.inference_pb2 import GetModelResponse

TOKENS = 12
Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


SMALL = (
    "serve --target target --drafter random --dataset gsm8k mbpp --samples 2 --max-prompt-tokens 64"
    f" --max-tokens {TOKENS} --warm-up 1 --draft-policy fixed"
)


@pytest.fixture(autouse=True)
def platforms_as_they_were() -> Iterator[None]:
    platforms = jax.config.values["jax_platforms"]
    yield
    jax.config.update("jax_platforms", platforms)


@pytest.mark.slow
def test_starts_a_service_and_measures_load(
    reported: Callable[..., tuple[dict[str, Any], Path]],
) -> None:
    load = ("--concurrency", "2", "--rate", "20", "--requests", "4", "--max-sequences", "2")
    report, output = reported(*load, "--slo-ttft-seconds", "60")
    table = (output / "serve.md").read_text("utf-8")
    assert "| 2 at a time | drafted | 4 | 0 |" in table
    assert "| 20 per second | plain | 4 | 0 |" in table

    assert report["service"]["address"] is None
    assert report["service"]["engine"]["scheduler"]["max_sequences"] == 2
    assert report["drafter"]["trained"] is False
    assert report["prompts"] == 4
    check_load(report)
    runs = [json.loads(line) for line in (output / "levels.jsonl").read_text().splitlines()]
    assert [run["key"][2] for run in runs] == ["drafted", "plain", "plain", "drafted"]
    assert {len(run["record"]["requests"]) for run in runs} == {4}


def check_load(report: dict[str, Any]) -> None:
    results = report["results"]
    assert [(r["mode"], r["load"], r["method"]) for r in results] == [
        ("closed", 2.0, "drafted"),
        ("closed", 2.0, "plain"),
        ("open", 20.0, "drafted"),
        ("open", 20.0, "plain"),
    ]
    for result in results:
        assert (result["requests"], result["failed"], result["errors"]) == (4, 0, {})
        assert 4 <= result["output_tokens"] <= 4 * TOKENS
        speed = result["output_tokens"] / result["duration_seconds"]
        # In a closed loop what comes at the end, with one request in flight, does not count.
        tolerance = 1e-6 if result["mode"] == "open" else 0.5
        while_full = result["output_tokens_per_second"]
        assert while_full == pytest.approx(speed, rel=tolerance)
        assert 0 < result["ttft_seconds"]["p50"] <= result["ttft_seconds"]["p99"]
        assert result["ttft_seconds"]["p50"] < result["latency_seconds"]["p50"]
        assert result["slo_share"] == 1.0
        goodput = 4 / result["duration_seconds"]
        assert result["goodput_requests_per_second"] == pytest.approx(goodput)
        assert 1.0 <= result["acceptance_length"] <= 8.0
        # The runs before sent the same prompts, all but the last tokens of which would be found in
        # the cache; after the flush it is only what requests of a run have in common.
        assert result["cached_prompt_share"] < 0.6
    for speedup, (drafted, plain) in zip(
        report["speedups"], (results[:2], results[2:]), strict=True
    ):
        ratio = drafted["output_tokens_per_second"] / plain["output_tokens_per_second"]
        assert speedup["speedup"] == pytest.approx(ratio)
        assert speedup["identical_share"] == 1.0


@pytest.mark.slow
def test_measures_a_running_service_and_goes_on_where_it_was(
    bench: Run, target: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "results"
    arguments = ["--target", str(target), "--drafter", "random", "--max-sequences", "2"]
    arguments += ["--max-model-len", "76", "--max-step-tokens", "16"]
    with own_service(arguments, 60.0) as service:
        address = service.connection.address
        common = ("--address", address, "--requests", "2", "--output", str(output))
        assert bench(*common, "--concurrency", "1", "--temperature", "1") == 0
        table = capsys.readouterr().out
        assert f"Service at {address}" in table
        assert (output / "serve.md").read_text("utf-8") == table
        before = (output / "levels.jsonl").read_bytes()
        assert len(before.splitlines()) == 2
        # One load more, other limits: only the new load is measured.
        more = ("--concurrency", "1", "2", "--slo-tpot-seconds", "60", "--json")
        assert bench(*common, *more, "--temperature", "1") == 0
        report = json.loads(capsys.readouterr().out)
        after = (output / "levels.jsonl").read_bytes()
        assert after.startswith(before)
        assert len(after.splitlines()) == 4
        assert [result["slo_share"] for result in report["results"]] == [1.0] * 4
        # At temperature 1 too, by the same seeds.
        assert [speedup["identical_share"] for speedup in report["speedups"]] == [1.0] * 2
        assert report["service"]["address"] == address
        # Too long for it.
        assert bench(*common, "--concurrency", "1", "--max-tokens", "64") == 2
        assert "the service holds 76 tokens" in capsys.readouterr().err


@pytest.mark.slow
def test_prompt_lookup_alone(
    bench: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    echo = tmp_path_factory.mktemp("echo")
    write_echoing_target(echo)
    load = ("--concurrency", "1", "--requests", "2", "--max-sequences", "1", "--json")
    assert bench(*load, "--target", str(echo), "--no-drafter", "--prompt-lookup") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafter"] is None
    assert report["service"]["engine"]["prompt_lookup"] is True
    drafted, plain = report["results"]
    assert drafted["acceptance_length"] > 2.0
    assert plain["acceptance_length"] == 1.0
    [speedup] = report["speedups"]
    assert speedup["identical_share"] == 1.0


def write_echoing_target(directory: Path) -> None:
    """Write a target that repeats the token it was given, so that prompt lookup is always right."""
    decoder = Decoder(tiny_config(), dtype=jnp.float32, rngs=nnx.Rngs(0))
    # What the layers add is nothing beside the embedding, which is the head too.
    decoder.embedding.table[...] = 1e4 * decoder.embedding.table[...]
    write_hf_checkpoint(decoder, directory)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--address", "x:1", "--no-tls", "--server-name", "y"), 2, "--no-tls contradicts"),
        (("--address", "x:1", "--ca-cert", "none.pem"), 2, "No such file"),
        (("--address", "x:1", "--api-key", "k", "--no-tls"), 2, "is not sent to x:1 in plaintext"),
        (("--address", "127.0.0.1:1"), 1, "cannot reach 127.0.0.1:1"),
    ],
)
def test_says_what_is_wrong(
    bench: Run, capsys: Capture, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert bench("--timeout-seconds", "10", *arguments) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


def test_refuses_a_service_that_reads_text_differently(bench: Run, capsys: Capture) -> None:
    with running_fake() as fake:
        assert bench("--address", fake.target, "--max-prompt-tokens", "40") == 2
        assert "the service has another tokenizer than --target" in capsys.readouterr().err


def test_refuses_a_service_without_a_drafter(bench: Run, capsys: Capture) -> None:
    with running_fake() as fake:
        fake.service.model = GetModelResponse()
        fake.service.model.CopyFrom(MODEL)
        fake.service.model.ClearField("drafter")
        assert bench("--address", fake.target) == 1
        assert "has no drafter; say --method plain" in capsys.readouterr().err


def test_a_service_that_cannot_start_is_heard(
    bench: Run, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(local_server, "SERVE_COMMAND", (*local_server.SERVE_COMMAND, "--nonsense"))
    assert bench("--concurrency", "1") == 1
    err = capsys.readouterr().err
    assert "the server ended with exit code 2" in err
    assert "--nonsense" in err
