"""A service to measure: its start, the connection to it, and its completions."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.provenance import DrafterIdentity, Target
from blockdraft_client.aio import AsyncClient
from blockdraft_client.cli.local_server import LocalServer
from blockdraft_client.client import Client
from blockdraft_client.model_info import ModelInfo
from blockdraft_client.params import SamplingParams, SpeculationParams, TLSConfig
from blockdraft_drafter.sources import find_checkpoint
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.scheduling.sequence import GenerationRequest

STARTUP_SECONDS = 900.0
# Deadline of one completion.
ANSWER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """The connection to a service; an empty key is none, None leaves key or TLS to the client."""

    address: str
    api_key: str | None
    tls: bool | TLSConfig | None
    timeout_seconds: float

    def client(self) -> Client:
        """Return a client for single calls; unsafe or unreadable settings are refused."""
        try:
            return Client(
                self.address, api_key=self.api_key, tls=self.tls, timeout=self.timeout_seconds
            )
        except (OSError, ValueError) as error:
            raise BenchUsageError(str(error)) from error

    def load_client(self) -> AsyncClient:
        """Return a client for load: it never tries again, so that every refusal is counted."""
        return AsyncClient(self.address, api_key=self.api_key, tls=self.tls, retry=None)


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that takes requests; the process id is its supervisor's if it was started here."""

    connection: ServiceConnection
    model: ModelInfo
    process_id: int | None = None

    @property
    def target(self) -> Target:
        """The target it serves."""
        return Target(self.model.target_fingerprint, self.model.name)

    @property
    def drafter(self) -> DrafterIdentity | None:
        """The drafter attached to it."""
        info = self.model.drafter
        if info is None:
            return None
        return DrafterIdentity(info.method, info.fingerprint, info.trained, info.block_size)

    @property
    def dtype(self) -> str:
        """The element type that the target computes in."""
        return self.model.exactness.dtype if self.model.exactness else "unknown"


@contextlib.contextmanager
def own_service(
    arguments: Sequence[str], timeout_seconds: float = ANSWER_SECONDS
) -> Iterator[RunningService]:
    """Run `blockdraft serve`, all its processes, for as long as the `with` block.

    Each request has this deadline.
    """
    with LocalServer(arguments) as server:
        server.wait_ready(STARTUP_SECONDS, lambda line: None)
        connection = ServiceConnection(server.address, "", False, timeout_seconds)
        with connection.client() as client:
            model = client.model()
        yield RunningService(connection, model, server.process_id)


def serve_arguments(target: str, drafter: str | None, engine: EngineSettings) -> list[str]:
    """Return the arguments of `blockdraft serve`; no drafter if it is None."""
    limits = engine.scheduler
    values = {
        "--target": target,
        "--dtype": engine.dtype,
        "--max-sequences": limits.max_sequences,
        "--max-step-tokens": limits.max_step_tokens,
        "--max-model-len": limits.max_context_tokens,
        "--num-pages": engine.num_pages,
        "--draft-policy": engine.draft_policy,
        "--recent-completions": engine.recent_completions,
    }
    arguments = [str(part) for pair in values.items() for part in pair]
    arguments += ["--no-drafter"] if drafter is None else ["--drafter", drafter]
    return [*arguments, "--prompt-lookup" if engine.prompt_lookup else "--no-prompt-lookup"]


def check_drafter(target: str, drafter: str) -> None:
    """Raise `ModelError` if a drafter cannot be found, before a service fails to start with it."""
    checkpoint = load_checkpoint_config(resolve_target(target))
    find_checkpoint(drafter, checkpoint, target_spec=target)


@dataclass(frozen=True, slots=True)
class ServiceDecoder:
    """Answers requests by a service, one at a time; a `DecodeOne`."""

    client: Client
    speculation: SpeculationParams

    def __call__(self, request: GenerationRequest) -> CompletionRecord:
        """Return the completion to a request; the service knows the stop tokens itself."""
        sampling = SamplingParams(
            max_tokens=request.max_output_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            seed=request.sampling.seed,
        )
        completion = self.client.generate(
            request.prompt, sampling=sampling, speculation=self.speculation
        )
        usage = completion.usage
        return CompletionRecord(
            completion.token_ids,
            usage.decode_seconds,
            verifications=usage.verification_steps,
            drafted_per_position=usage.drafted_per_position,
            accepted_per_position=usage.accepted_per_position,
        )
