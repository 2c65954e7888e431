"""A verifier of two processes, as on a slice of two hosts: four simulated devices, two each."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import grpc
import jax.numpy as jnp
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.ports import free_ports
from tests.verifier.support import decode

from blockdraft_models.sampling_options import LogitsRules, Sampling
from blockdraft_models.weights.loading import load_decoder
from blockdraft_protos.v1 import inference_pb2
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_protos.v1.verifier_pb2_grpc import VerifierServiceStub
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Each starts processes that compile for a slice.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
READY_SECONDS = 300.0
END_SECONDS = 60.0
ENGINE = EngineSettings(
    page_size=4,
    num_pages=32,
    scheduler=SchedulerSettings(max_sequences=1, max_step_tokens=4, max_context_tokens=64),
)
FLAGS = ("--max-sequences", "1", "--max-step-tokens", "4", "--max-model-len", "64")
CACHE = ("--page-size", "4", "--num-pages", "32")
REQUESTS = (
    GenerationRequest("greedy", (5, 6, 7, 8, 9), max_output_tokens=12),
    GenerationRequest(
        "sampled", (1, 2), sampling=Sampling(temperature=0.8, seed=7), max_output_tokens=12
    ),
    # Its biases go to the other hosts too.
    GenerationRequest(
        "rules",
        (5, 6, 7),
        max_output_tokens=12,
        rules=LogitsRules(frequency_penalty=1.5, logit_bias={7: 3.0, 9: 2.5}),
    ),
)


class Process:
    """A process of the command line, and what it says."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str], devices: int = 1) -> None:
        self.address = f"unix:{folder / name}.sock"
        self.log = folder / f"{name}.log"
        devices_flag = f"--xla_force_host_platform_device_count={devices}"
        environment = {
            **os.environ,
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {devices_flag}",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "BLOCKDRAFT_CACHE": str(ROOT / ".cache" / "slice-tests"),
        }
        command = [sys.executable, "-m", "blockdraft", *arguments, "--listen", self.address]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        with grpc.insecure_channel(self.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while True:
                assert self.process.poll() is None, self.said()
                assert time.monotonic() < deadline, self.said()
                with contextlib.suppress(grpc.RpcError):
                    answer = health.Check(  # type: ignore[attr-defined]  # its stubs lack it
                        health_pb2.HealthCheckRequest(), timeout=5
                    )
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                time.sleep(0.1)

    def said(self) -> str:
        return self.log.read_text("utf-8", errors="replace")


class Slice:
    """Starts the processes of a slice, and stops what is left of them in the end."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.target = target
        self._folder = folder
        self._started: list[Process] = []
        self._coordinator = f"127.0.0.1:{free_ports(1)}"

    def start(self, name: str, *arguments: str, devices: int = 1) -> Process:
        process = Process(self._folder, name, (*arguments, "--target", str(self.target)), devices)
        self._started.append(process)
        return process

    def verifier(self, number: int, *arguments: str) -> Process:
        place = ("--coordinator", self._coordinator, "--num-processes", "2")
        return self.start(
            f"process-{number}",
            *("verifier", *FLAGS, *CACHE, *place, "--process-id", str(number), *arguments),
            devices=2,
        )

    def kill(self) -> None:
        for each in self._started:
            each.process.kill()
            each.process.wait()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    config = tiny_config("qwen3", vocab_size=264, num_heads=8, num_kv_heads=4, num_layers=2)
    write_hf_checkpoint(random_decoder(config), folder)
    return folder


@pytest.fixture
def hosts(tmp_path: Path, target: Path) -> Iterator[Slice]:
    started = Slice(tmp_path, target)
    yield started
    started.kill()


def expected(target: Path) -> list[list[int]]:
    """Return what one process on one device decodes."""
    decoder, _ = load_decoder(target, dtype=jnp.float32)
    runner = ModelRunner(decoder, ENGINE)
    metrics = VerifierMetrics(CollectorRegistry())
    engine = Engine(runner, ENGINE, None, decoder.config.vocab_size, metrics)
    engine.warm_up()
    return [outcome.tokens for outcome in decode(engine, REQUESTS)]


def generate(
    stub: VerifierServiceStub, request: GenerationRequest, *, plain: bool = False
) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many drafts were verified."""
    message = pb.SequenceRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt,
        sampling=inference_pb2.SamplingOptions(
            **asdict(request.sampling),
            **asdict(request.rules),
            max_output_tokens=request.max_output_tokens,
        ),
        speculation=inference_pb2.SpeculationOptions(disabled=plain),
    )
    tokens: list[int] = []
    drafted = 0
    begin = pb.DecodeRequest(sequence_id=1, begin=message)
    for response in stub.Decode(iter((begin,)), timeout=END_SECONDS):
        (gained,) = response.sequences
        assert not gained.HasField("error")
        tokens.extend(gained.token_ids)
        drafted = gained.usage.drafted_tokens
    return tokens, drafted


def test_two_processes_decode_what_one_does_and_drain_together(hosts: Slice) -> None:
    drafter = hosts.start(
        *("drafter", "drafter", "--drafter", "random", "--block-size", "4"),
        *("--max-sequences", "1", "--max-model-len", "64"),
    )
    flags = ("--drafter", drafter.address, "--draft-policy", "fixed")
    leader, follower = (hosts.verifier(number, *flags) for number in (0, 1))
    tokens = expected(hosts.target)
    leader.wait_ready()
    follower.wait_ready()
    # Of the sums over hosts too, on whose order the network has no say.
    assert "step shapes are batch-invariant" in leader.said()
    assert "are padded" not in leader.said()
    with grpc.insecure_channel(leader.address) as channel:
        stub = VerifierServiceStub(channel)
        for request, alone in zip(REQUESTS, tokens, strict=True):
            together, drafted = generate(stub, request)
            assert together == alone
            assert drafted > 0
            # Steps are launched ahead here, and take tokens that no host has read yet.
            assert generate(stub, request, plain=True) == (alone, 0)
    for each in (follower, leader):
        each.process.send_signal(signal.SIGTERM)
    for each in (leader, follower):
        assert each.process.wait(END_SECONDS) == 0, each.said()
    assert "is gone" not in leader.said()


@pytest.mark.parametrize("killed", [0, 1])
def test_neither_goes_on_without_the_other(hosts: Slice, killed: int) -> None:
    processes = [hosts.verifier(number, "--drafter", "none") for number in (0, 1)]
    for each in processes:
        each.wait_ready()
    processes[killed].process.kill()
    survivor = processes[1 - killed]
    assert survivor.process.wait(END_SECONDS) != 0
    lost = "process 1 of the slice is gone" if killed else "the leader of the slice is gone"
    assert lost in survivor.said()


def test_a_stopped_follower_ends_the_leader_that_needs_it(hosts: Slice) -> None:
    leader, follower = (hosts.verifier(number, "--drafter", "none") for number in (0, 1))
    for each in (leader, follower):
        each.wait_ready()
    follower.process.send_signal(signal.SIGSTOP)
    with grpc.insecure_channel(leader.address) as channel, pytest.raises(grpc.RpcError):
        generate(VerifierServiceStub(channel), REQUESTS[0])
    assert leader.process.wait(END_SECONDS) == 1, leader.said()
    assert "process 1 of the slice has taken no step for 10 s" in leader.said()


def test_a_stopped_leader_ends_the_follower(hosts: Slice) -> None:
    leader, follower = (hosts.verifier(number, "--drafter", "none") for number in (0, 1))
    for each in (leader, follower):
        each.wait_ready()
    leader.process.send_signal(signal.SIGSTOP)
    assert follower.process.wait(END_SECONDS) != 0


def test_processes_with_other_flags_do_not_decode_together(hosts: Slice) -> None:
    leader = hosts.verifier(0, "--drafter", "none")
    follower = hosts.verifier(1, "--drafter", "none", "--num-pages", "33")
    for each in (leader, follower):
        assert each.process.wait(END_SECONDS) == 1
        assert "other flags, another target" in each.said()
