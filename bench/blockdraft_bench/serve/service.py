"""The service under load, running already or started here, its trainer, and its requests."""

import argparse
import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from blockdraft_bench.errors import BenchError, BenchUsageError
from blockdraft_bench.prompts import PreparedPrompts
from blockdraft_bench.run import Run
from blockdraft_bench.samples import Limits
from blockdraft_bench.serve.settings import LoadTestSettings
from blockdraft_bench.service import (
    RunningService,
    ServiceConnection,
    check_drafter,
    own_service,
    serve_arguments,
)
from blockdraft_client.cli.options import tls_from
from blockdraft_client.params import ChatMessage
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_server.supervise.plan import TRAINER_MODULE
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Words, digits, a script of several bytes a character: tokenizers differ in these.
PROBE = "Is 1234 prime? 素数ですか。"


@contextlib.contextmanager
def service_for(settings: LoadTestSettings, run: Run) -> Iterator[RunningService]:
    """Reach the service, or start one and stop it in the end."""
    service_settings, timeout_seconds = settings.service, settings.load.timeout_seconds
    if service_settings.address is not None:
        tls = tls_from(argparse.Namespace(**asdict(service_settings)))
        connection = ServiceConnection(
            service_settings.address, service_settings.api_key, tls, timeout_seconds
        )
        with connection.client() as client:
            model = client.model()
        if model.drafter is None and set(settings.load.methods) != {"plain"}:
            raise BenchError(f"{service_settings.address} has no drafter; say --method plain")
        yield RunningService(connection, model)
        return
    starting = run.phase("starting the service")
    with contextlib.ExitStack() as stack:
        drafter = None if service_settings.no_drafter else service_settings.drafter
        if drafter is not None:
            check_drafter(settings.prompts.target, drafter)
        arguments = serve_arguments(settings.prompts.target, drafter, settings.engine)
        if settings.learns:
            folder = stack.enter_context(TemporaryDirectory(prefix="blockdraft-"))
            arguments += ["--learn", "--learn-dir", folder]
        service = stack.enter_context(own_service(arguments, timeout_seconds))
        starting.reach(1, 1)
        yield service


def pool_of_requests(
    prepared: PreparedPrompts, settings: LoadTestSettings
) -> list[GenerationRequest]:
    """Return a request for each prompt, the datasets in turn, so that few requests mix them all."""
    prompts = settings.prompts
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    columns = [
        [
            limits.request(prompt_set.dataset, prompt, settings.temperature)
            for prompt in prompt_set.prompts
        ]
        for prompt_set in prepared.prompt_sets
    ]
    rows = itertools.zip_longest(*columns)
    return [request for row in rows for request in row if request is not None]


def check_service(
    service: RunningService, tokenizer: Tokenizer, pool: Sequence[GenerationRequest]
) -> None:
    """Refuse a service with another tokenizer, or with too short a context."""
    room = service.model.max_context_tokens
    longest = max(len(request.prompt) + request.max_output_tokens for request in pool)
    if longest > room:
        raise BenchUsageError(
            f"the service holds {room} tokens of a prompt and its completion, not {longest}; "
            "lower --max-prompt-tokens or --max-tokens"
        )
    with service.connection.client() as client:
        theirs = client.tokenize([ChatMessage("user", PROBE)]).token_ids
    if theirs != tuple(tokenizer.encode_chat([{"role": "user", "content": PROBE}])):
        raise BenchUsageError("the service has another tokenizer than --target")


class Trainer:
    """The process that learns, beside a service that was started here.

    Its methods raise `BenchError` if there is none.
    """

    def __init__(self, supervisor: int, proc: Path = Path("/proc")) -> None:
        """Find no process yet; `supervisor` is the process id of `blockdraft serve`."""
        self._supervisor = supervisor
        self._proc = proc

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop it for as long as the `with` block."""
        process = self.process_id()
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the processor seconds that it and its living descendants have used."""
        processes = self._processes()
        family = _family(self.process_id(), processes)
        return sum(processes[number][1] for number in family) / os.sysconf("SC_CLK_TCK")

    def process_id(self) -> int:
        """Return its process id, searched for each time: a trainer that ends is started again."""
        for number in sorted(_family(self._supervisor, self._processes()) - {self._supervisor}):
            with contextlib.suppress(OSError):
                words = (self._proc / str(number) / "cmdline").read_bytes().split(b"\0")
                if TRAINER_MODULE.encode() in words:
                    return number
        raise BenchError("the service has no trainer; it may have ended")

    def _processes(self) -> dict[int, tuple[int, int]]:
        """Return the parent and the used clock ticks of each process, by its id."""
        processes = {}
        for stat in self._proc.glob("[0-9]*/stat"):
            try:
                text = stat.read_text("utf-8", errors="replace")
            except OSError:
                continue  # It has ended.
            # The name, in parentheses, may hold anything; state and parent follow it.
            fields = text.rpartition(")")[2].split()
            processes[int(stat.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        return processes


def _family(process_id: int, processes: dict[int, tuple[int, int]]) -> set[int]:
    """Return a living process and its living descendants."""
    family = {process_id} & processes.keys()
    # A child may have a lower number than its parent: repeat until none is added.
    while joining := {
        number
        for number, (parent, _) in processes.items()
        if parent in family and number not in family
    }:
        family |= joining
    return family
