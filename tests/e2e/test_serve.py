"""`blockdraft serve` as users run it: three processes, a tiny target, real sockets and signals."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_ports
from tests.supervised import child_of
from tests.verifier.support import tiny_decoder

from blockdraft_client import (
    AsyncClient,
    ChatMessage,
    Client,
    InvalidRequestError,
    SamplingParams,
    SpeculationParams,
)
from blockdraft_client.cli import debug
from blockdraft_client.cli.main import main

ROOT = Path(__file__).parents[2]
READY_SECONDS = 5 * PATIENCE_SECONDS
DRAFT_TIMEOUT_SECONDS = 2 * PATIENCE_SECONDS
# Beside other tests a drafter takes its time; if it were late, it would not be asked for a while.
DRAFT_PATIENCE_SECONDS = 2
PLAIN = SpeculationParams(disabled=True)
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, top_p=0.9, seed=7, max_tokens=24, ignore_eos=True)
LONG = SamplingParams(temperature=1.0, seed=3, max_tokens=200, ignore_eos=True)


@dataclass
class Service:
    """A running `blockdraft serve`."""

    process: subprocess.Popen[bytes]
    address: str
    metrics_port: int
    directory: Path

    @property
    def log(self) -> Path:
        """What the processes logged."""
        return self.directory / "log"

    def child(self, role: str) -> psutil.Process:
        return child_of(self.process.pid, role)

    def metrics(self, offset: int) -> str:
        """Return what the process whose port is `offset` above the first exposes."""
        url = f"http://127.0.0.1:{self.metrics_port + offset}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
            text: bytes = response.read()
        return text.decode()

    def metric(self, offset: int, name: str) -> float:
        """Return the sum of a metric of the process whose port is `offset` above the first."""
        lines = self.metrics(offset).splitlines()
        values = [line.rsplit(" ", 1) for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert values, name
        return sum(float(value) for _, value in values)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("serve")
    write_hf_checkpoint(tiny_decoder(), directory / "target")
    port = free_ports(4)
    address = f"127.0.0.1:{port + 3}"
    flags = f"""
        --listen {address} --target {directory / "target"} --drafter random --dtype bfloat16
        --max-sequences 4 --max-step-tokens 16 --max-model-len 256 --draft-policy fixed
        --metrics-port {port} --run-dir {directory} --log-format json --log-level debug
        --draft-patience {DRAFT_PATIENCE_SECONDS} --draft-timeout {DRAFT_TIMEOUT_SECONDS}
        --hang-timeout 6
    """
    command = [sys.executable, "-m", "blockdraft", "serve", *flags.split()]
    environment = {**os.environ, "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "serve-tests")}
    log = (directory / "log").open("wb")
    process = subprocess.Popen(command, stderr=log, env=environment)
    try:
        with Client(address) as client:
            client.wait_ready(READY_SECONDS)
            until(lambda: client.model().drafter is not None)
        yield Service(process, address, port, directory)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_SECONDS)
        log.close()
        print((directory / "log").read_text()[-5000:])


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.address, timeout=300) as client:
        yield client


def until_drafting(client: Client) -> None:
    until(lambda: client.model().drafter is not None)
    until(lambda: client.generate("again", sampling=GREEDY).usage.drafted_tokens > 0)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_drafting_does_not_change_the_answer(client: Client, sampling: SamplingParams) -> None:
    prompt = [ChatMessage("user", "Tell me about ducks.")]
    plain = client.generate(prompt, sampling=sampling, speculation=PLAIN)
    drafted = client.generate(prompt, sampling=sampling)
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    assert plain.usage.drafted_tokens == 0
    assert drafted.usage.drafted_tokens > 0
    assert drafted.usage.output_tokens == 24
    steps = drafted.usage.verification_steps
    assert 1 + steps + drafted.usage.accepted_tokens >= 24


def test_a_request_can_be_followed_through_all_processes(
    service: Service,
    client: Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debug, "CALL_SECONDS", PATIENCE_SECONDS)

    def seen_on_its_way() -> tuple[dict[str, Any], str]:
        with client.stream("How deep is the pond?", sampling=LONG) as stream:
            chunks = iter(stream)
            for _ in range(3):
                next(chunks)
            assert main(["debug", "--run-dir", str(service.directory), "--json"]) == 0
            found = json.loads(capsys.readouterr().out).values()
            for _ in chunks:
                pass
            return {each["role"]: each["state"] for each in found}, stream.completion().request_id

    # The processes do not wait for each other: who looks late finds the answer complete.
    deadline = time.monotonic() + READY_SECONDS
    while True:
        shown, request_id = seen_on_its_way()
        assert set(shown) == {"server", "verifier", "drafter"}
        # It is asked last.
        if shown["verifier"]["running"]:
            break
        assert time.monotonic() < deadline, shown
    assert shown["server"]["admitted"] == 1
    [sequence] = shown["verifier"]["running"]
    assert sequence["request_id"] == request_id
    assert sequence["output_tokens"] >= 3
    assert sequence["pages"] > 0
    [stream_state] = shown["drafter"]["streams"]
    [cache] = stream_state["draft_caches"]
    assert cache["request_id"] == request_id

    def told() -> list[dict[str, object]]:
        lines = service.log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"request_id": "{request_id}"' in line]

    # Told after the stream has ended for the client.
    until(lambda: bool(told()))
    logged = told()
    assert [(each["role"], each["outcome"]) for each in logged] == [("server", "length")]


def test_a_crowd_of_mixed_requests_hears_what_each_would_alone(
    service: Service, client: Client
) -> None:
    prompts = [f"Question {i}: how many legs have {i} ducks?" for i in range(16)]
    options = [GREEDY if i % 2 else SAMPLED for i in range(16)]
    alone = [
        client.generate(prompt, sampling=option, speculation=PLAIN).token_ids
        for prompt, option in zip(prompts, options, strict=True)
    ]

    async def crowd() -> list[tuple[int, ...]]:
        async with AsyncClient(service.address, timeout=300) as client:
            answers = await asyncio.gather(
                *(
                    client.generate(prompt, sampling=option)
                    for prompt, option in zip(prompts, options, strict=True)
                )
            )
        return [answer.token_ids for answer in answers]

    assert asyncio.run(crowd()) == alone


def test_a_killed_drafter_does_not_change_the_stream(service: Service, client: Client) -> None:
    prompt = "The drafter will die"
    expected = client.generate(prompt, sampling=LONG, speculation=PLAIN)
    with client.stream(prompt, sampling=LONG) as stream:
        tokens = list(next(stream).token_ids)
        service.child("drafter").kill()
        tokens += [token for chunk in stream for token in chunk.token_ids]
    assert tuple(tokens) == expected.token_ids
    # The supervisor starts it again, and drafting resumes.
    until_drafting(client)


def test_a_verifier_that_hangs_is_killed_and_loses_nothing(
    service: Service, client: Client
) -> None:
    prompts = [f"The verifier will hang, {number}" for number in range(3)]
    expected = [client.generate(prompt, sampling=LONG).token_ids for prompt in prompts]
    verifier = service.child("verifier")
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(client.stream(prompt, sampling=LONG)) for prompt in prompts]
        answers = [list(next(stream).token_ids) for stream in streams]
        verifier.suspend()
        for answer, stream in zip(answers, streams, strict=True):
            answer.extend(token for chunk in stream for token in chunk.token_ids)
    assert [tuple(answer) for answer in answers] == expected
    # Where the answers had come so far that nothing was missing, they ended before it was killed.
    until(lambda: not verifier.is_running())
    until_drafting(client)


def test_a_stopped_drafter_holds_nobody_up(service: Service, client: Client) -> None:
    prompt = "The drafter will stop"
    expected = client.generate(prompt, sampling=LONG, speculation=PLAIN)
    drafter = service.child("drafter")
    late = service.metric(1, "blockdraft_verifier_late_drafts_total")
    with client.stream(prompt, sampling=LONG) as stream:
        tokens = list(next(stream).token_ids)
        drafter.suspend()
        try:
            times = [time.monotonic()]
            for chunk in stream:
                tokens.extend(chunk.token_ids)
                times.append(time.monotonic())
            # The verifier may have been done with that answer when the drafter stopped.
            again = client.generate(prompt, sampling=LONG)
            times.append(time.monotonic())
        finally:
            # Whoever stops for too long is killed.
            with contextlib.suppress(psutil.NoSuchProcess):
                drafter.resume()
    assert tuple(tokens) == again.token_ids == expected.token_ids
    assert service.metric(1, "blockdraft_verifier_late_drafts_total") > late
    # One step once waited until the connection was given up.
    longest = max(after - before for before, after in itertools.pairwise(times))
    assert longest < DRAFT_TIMEOUT_SECONDS / 2
    until_drafting(client)


def test_leaving_a_stream_frees_its_pages(service: Service, client: Client) -> None:
    with client.stream("leave me", sampling=LONG) as stream:
        next(stream)
    until(lambda: service.metric(1, "blockdraft_verifier_pages_used") == 0)
    until(lambda: service.metric(1, "blockdraft_verifier_running_sequences") == 0)


def test_bad_input_disturbs_nobody(client: Client) -> None:
    expected = client.generate("steady", sampling=LONG, speculation=PLAIN)
    with client.stream("steady", sampling=LONG) as stream:
        tokens = list(next(stream).token_ids)
        for prompt, options in (
            ("", {}),
            ([], {}),
            ([10**6], {}),
            ("x" * 10_000, {}),
            ("ok", {"temperature": float("nan")}),
            ("ok", {"top_p": 0.0}),
            ("ok", {"max_tokens": 0}),
        ):
            with pytest.raises(InvalidRequestError):
                client.generate(prompt, **options)
        tokens += [token for chunk in stream for token in chunk.token_ids]
    assert tuple(tokens) == expected.token_ids


def test_steps_are_batch_invariant(client: Client, service: Service) -> None:
    exactness = client.model().exactness
    assert exactness is not None
    assert exactness.exact, exactness
    assert str(exactness) == "exact in bfloat16"
    assert service.metric(1, "blockdraft_verifier_numerics_classes") == 1


def test_reflection_serves_buf_curl(service: Service) -> None:
    buf = Path(sys.executable).parent / "buf"
    url = f"http://{service.address}/blockdraft.v1.InferenceService/Tokenize"
    command = [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge"]
    result = subprocess.run(
        [*command, "-d", '{"prompt": {"text": "hi"}}', url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"tokenIds"' in result.stdout


def test_nothing_was_compiled_after_warm_up(service: Service) -> None:
    assert service.metric(1, "blockdraft_verifier_recompilations_total") == 0
    assert service.metric(2, "blockdraft_drafter_recompilations_total") == 0


def test_no_text_and_no_tokens_are_logged_or_counted(service: Service, client: Client) -> None:
    prompt = "Whatever you do, do not repeat xyzzy-4711."
    answer = client.generate(prompt, sampling=GREEDY)
    with pytest.raises(InvalidRequestError):
        client.generate(prompt, temperature=-1)
    tokens = client.tokenize(prompt).token_ids
    told = service.log.read_text() + "".join(map(service.metrics, range(3)))
    assert "debug" in told.lower()
    # Those of the tests before are not there either.
    for text in ("xyzzy", "ducks", "The drafter will die", answer.text):
        assert text not in told
    for ids in (tokens, answer.token_ids):
        assert ", ".join(map(str, ids[:4])) not in told


@pytest.mark.parametrize("offset", range(3))
def test_when_counters_were_made_is_no_metric(service: Service, offset: int) -> None:
    told = service.metrics(offset)
    assert "_total" in told
    assert "_created" not in told


def test_stops_cleanly(service: Service) -> None:
    family = psutil.Process(service.process.pid).children(recursive=True)
    assert len(family) >= 3
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(READY_SECONDS) == 0
    assert not [process for process in family if process.is_running()]
