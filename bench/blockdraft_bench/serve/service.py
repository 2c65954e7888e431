"""The service that is pressed, running already or started here, and what it is asked."""

import argparse
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from blockdraft_bench.engine.samples import Limits
from blockdraft_bench.errors import BenchError, BenchUsageError
from blockdraft_bench.prompts import Prepared
from blockdraft_bench.run import Run
from blockdraft_bench.serve.settings import ServeSettings
from blockdraft_client.aio import AsyncClient
from blockdraft_client.cli.local_server import LocalServer
from blockdraft_client.cli.options import tls_from
from blockdraft_client.client import Client
from blockdraft_client.options import TLSConfig
from blockdraft_client.params import ChatMessage
from blockdraft_client.results import ModelInfo
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_verifier.scheduling.sequence import GenerationRequest

STARTUP_SECONDS = 900.0
# Words, digits, a script of several bytes a character: tokenizers differ in these.
PROBE = "Is 1234 prime? 素数ですか。"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a service.

    Attributes:
        address: Its address, such as `host:port`.
        api_key: The API key; None reads the environment, empty sends none.
        tls: Whether and how to encrypt; None as the client decides.
        timeout_seconds: Deadline of calls that set none.
    """

    address: str
    api_key: str | None
    tls: bool | TLSConfig | None
    timeout_seconds: float

    def client(self) -> Client:
        """Return a client for single calls; what is unsafe or unreadable is refused."""
        try:
            return Client(
                self.address, api_key=self.api_key, tls=self.tls, timeout=self.timeout_seconds
            )
        except (OSError, ValueError) as error:
            raise BenchUsageError(str(error)) from error

    def load_client(self) -> AsyncClient:
        """Return a client for load: it never tries again, so that every refusal is counted."""
        return AsyncClient(
            self.address,
            api_key=self.api_key,
            tls=self.tls,
            timeout=self.timeout_seconds,
            retry=None,
        )


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that takes requests; the process id is its supervisor's if it was started here."""

    connection: Connection
    model: ModelInfo
    process_id: int | None = None


@contextlib.contextmanager
def service_for(settings: ServeSettings, run: Run) -> Iterator[RunningService]:
    """Reach the service, or start one and stop it in the end."""
    wanted, timeout_seconds = settings.service, settings.load.timeout_seconds
    if wanted.address is not None:
        tls = tls_from(argparse.Namespace(**asdict(wanted)))
        connection = Connection(wanted.address, wanted.api_key, tls, timeout_seconds)
        with connection.client() as client:
            model = client.model()
        if model.drafter is None and set(settings.load.methods) != {"plain"}:
            raise BenchError(f"{wanted.address} has no drafter; say --method plain")
        yield RunningService(connection, model)
        return
    starting = run.phase("starting the service")
    with contextlib.ExitStack() as stack:
        learn_dir = None
        if settings.learns:
            learn_dir = Path(stack.enter_context(TemporaryDirectory(prefix="blockdraft-")))
        arguments = serve_arguments(settings, learn_dir)
        service = stack.enter_context(own_service(arguments, timeout_seconds))
        starting.reach(1, 1)
        yield service


@contextlib.contextmanager
def own_service(arguments: Sequence[str], timeout_seconds: float) -> Iterator[RunningService]:
    """Run `blockdraft serve`, all its processes, for as long as the `with` block.

    Each request has this deadline.
    """
    with LocalServer(arguments) as server:
        server.wait_ready(STARTUP_SECONDS, lambda line: None)
        connection = Connection(server.address, "", False, timeout_seconds)
        with connection.client() as client:
            model = client.model()
        yield RunningService(connection, model, server.process_id)


def serve_arguments(settings: ServeSettings, learn_dir: Path | None = None) -> list[str]:
    """Return what to tell `blockdraft serve`; it learns in a folder, or not at all."""
    engine = settings.engine
    limits = engine.scheduler
    values = {
        "--target": settings.prompts.target,
        "--dtype": engine.dtype,
        "--max-sequences": limits.max_sequences,
        "--max-step-tokens": limits.max_step_tokens,
        "--max-context-tokens": limits.max_context_tokens,
        "--num-pages": engine.num_pages,
        "--draft-policy": engine.draft_policy,
    }
    arguments = [str(part) for pair in values.items() for part in pair]
    service = settings.service
    arguments += ["--no-drafter"] if service.no_drafter else ["--drafter", service.drafter]
    if learn_dir is not None:
        arguments += ["--learn", "--learn-dir", str(learn_dir)]
    return [*arguments, "--lookup" if engine.lookup else "--no-lookup"]


def pool_of_requests(prepared: Prepared, settings: ServeSettings) -> list[GenerationRequest]:
    """Return a request for each prompt, the datasets in turn, so that few requests mix them all."""
    prompts = settings.prompts
    limits = Limits(prompts.max_tokens, prepared.stop_token_ids, prompts.seed)
    columns = [
        [limits.request(each.dataset, prompt, settings.temperature) for prompt in each.prompts]
        for each in prepared.prompt_sets
    ]
    rows = itertools.zip_longest(*columns)
    return [request for row in rows for request in row if request is not None]


def check_service(
    service: RunningService, tokenizer: Tokenizer, pool: Sequence[GenerationRequest]
) -> None:
    """Refuse a service that reads text differently, or has no room for a prompt and its answer."""
    room = service.model.max_context_tokens
    longest = max(len(request.prompt) + request.max_output_tokens for request in pool)
    if longest > room:
        raise BenchUsageError(
            f"the service holds {room} tokens of a prompt and its answer, not {longest}; "
            "lower --max-prompt-tokens or --max-tokens"
        )
    with service.connection.client() as client:
        theirs = client.tokenize([ChatMessage("user", PROBE)]).token_ids
    if theirs != tuple(tokenizer.encode_chat([{"role": "user", "content": PROBE}])):
        raise BenchUsageError("the service has another tokenizer than --target")
