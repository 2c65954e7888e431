"""The service that is measured: one that runs already, or `blockdraft serve` for the occasion."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockdraft_bench.common.errors import BenchError, BenchUsageError
from blockdraft_client.aio import AsyncClient
from blockdraft_client.cli.local_server import LocalServer
from blockdraft_client.client import Client
from blockdraft_client.options import TLSConfig
from blockdraft_client.results import ModelInfo
from blockdraft_runtime.settings.verifier import EngineSettings

STARTUP_SECONDS = 900.0


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
        """Return a client for single calls.

        Raises:
            BenchUsageError: If an API key would travel in plaintext beyond this machine, or a
                certificate cannot be read.
        """
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
    """A service that takes requests.

    Attributes:
        connection: How to reach it.
        model: What it serves.
        process_id: Its supervisor's process id; None if it was not started here.
    """

    connection: Connection
    model: ModelInfo
    process_id: int | None = None


def running_service(connection: Connection, *, needs_drafter: bool) -> RunningService:
    """Return a service that runs already.

    Raises:
        BlockdraftError: If it cannot be reached.
        BenchError: If it has no drafter.
    """
    with connection.client() as client:
        model = client.model()
    if needs_drafter and model.drafter is None:
        raise BenchError(f"{connection.address} has no drafter; say --method plain")
    return RunningService(connection, model)


@contextlib.contextmanager
def own_service(arguments: Sequence[str], timeout_seconds: float) -> Iterator[RunningService]:
    """Run `blockdraft serve`, all its processes, for as long as the `with` block.

    Args:
        arguments: What it is told.
        timeout_seconds: Deadline of each request.

    Raises:
        CommandFailedError: If it does not get ready.
    """
    with LocalServer(arguments) as server:
        server.wait_ready(STARTUP_SECONDS, lambda line: None)
        connection = Connection(server.address, "", False, timeout_seconds)
        with connection.client() as client:
            model = client.model()
        yield RunningService(connection, model, server.process_id)


def serve_arguments(
    target: str, drafter: str | None, config: EngineSettings, learn_dir: Path | None = None
) -> list[str]:
    """Return what to tell `blockdraft serve`, so that its verifier runs with this configuration.

    Args:
        target: As of `serve`.
        drafter: As of `serve`; None for none.
        config: Limits and policy of the engine.
        learn_dir: Folder in which the service learns; None if it does not.
    """
    limits = config.scheduler
    values = {
        "--target": target,
        "--dtype": config.dtype,
        "--max-sequences": limits.max_sequences,
        "--max-step-tokens": limits.max_step_tokens,
        "--max-context-tokens": limits.max_context_tokens,
        "--num-pages": config.num_pages,
        "--draft-policy": config.draft_policy,
    }
    arguments = [str(part) for pair in values.items() for part in pair]
    arguments += ["--no-drafter"] if drafter is None else ["--drafter", drafter]
    if learn_dir is not None:
        arguments += ["--learn", "--learn-dir", str(learn_dir)]
    return [*arguments, "--lookup" if config.lookup else "--no-lookup"]
