"""The server process: wiring and life cycle."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from prometheus_client import REGISTRY, CollectorRegistry

from blockdraft_protos.v1 import inference_pb2_grpc
from blockdraft_protos.vllm import vllm_engine_pb2_grpc
from blockdraft_runtime import version
from blockdraft_runtime.channel import SERVER_OPTIONS
from blockdraft_runtime.credentials import (
    Certificate,
    Reloaded,
    read_certificate,
    server_credentials,
)
from blockdraft_runtime.event_loop import HeldLoop
from blockdraft_runtime.process import serve
from blockdraft_runtime.settings.server import ServerSettings, TlsSettings
from blockdraft_runtime.status import add_strictly
from blockdraft_server.keys import ApiKeys, AuthInterceptor, TenantsByKey, parse_keys
from blockdraft_server.metrics import ServerMetrics
from blockdraft_server.prompts import longest_token_bytes
from blockdraft_server.routing.places import Places, Resolve, resolve
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.service import SERVICE, InferenceService
from blockdraft_server.traces import Traces
from blockdraft_server.vllm.service import SERVICE as VLLM_SERVICE
from blockdraft_server.vllm.service import VllmEngineService

if TYPE_CHECKING:
    from blockdraft_models.tokenizer.tokenizer import Tokenizer
    from blockdraft_server.openai.http_server import HttpServer

logger = logging.getLogger(__name__)

# Bytes beside the longest prompt: a constraint, names and options, and the encoding of a
# conversation.
_ROOM_BYTES = 512 * 1024

# For TLS and the beginning of HTTP/2. A client that connects and sends nothing is dropped then.
HANDSHAKE_MILLISECONDS = 20_000


class ServerApp:
    """The API server; an `Application` of `blockdraft_runtime.process`.

    Attributes:
        role: Name of the kind of process.
        internal: False, because anybody may call it.
        service_names: The services it registers.
        health: Reports SERVING only while at least one verifier is healthy.
    """

    role = "server"
    internal = False
    service_names: Sequence[str] = (SERVICE, VLLM_SERVICE)

    def __init__(
        self,
        settings: ServerSettings,
        *,
        tokenizer: "Tokenizer | None" = None,
        traces: Traces | None = None,
        registry: CollectorRegistry = REGISTRY,
        resolve: Resolve = resolve,
    ) -> None:
        """Read keys and certificate and wire the parts; nothing connects before `start`.

        `start` loads the target's tokenizer if the caller has none. `UnusableFilesError` if the
        files of keys or certificate cannot be used.
        """
        self.health = HealthServicer()
        self._settings = settings
        self._tokenizer = tokenizer
        self._registry = registry
        self._traces = traces or Traces()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics = metrics = ServerMetrics(registry)
        metrics.build.labels(version(), settings.served_name).set(1)
        self._held_loop = HeldLoop(metrics.event_loop_hold.observe)
        metrics.event_loop_longest_hold.set_function(lambda: self._held_loop.longest_seconds)
        self._certificate = None if settings.tls is None else _certificate(settings.tls)
        self._note_expiry()
        path = settings.api_key_file
        self._keys = keys = None if path is None else _key_file(path)
        self._api_keys = ApiKeys() if keys is None else ApiKeys(lambda: keys.value)
        self._pool = VerifierPool(
            Places(settings.verifiers, metrics.name_resolution_failures.inc, resolve),
            settings.poll_seconds,
            settings.limits.recovery_seconds,
            self._changed.set,
            settings.peer_tls,
        )
        metrics.count_verifiers(self._pool.count)
        self._service = InferenceService(
            settings, self._pool, self._api_keys, metrics, self._traces
        )
        completions = self._service.completions
        self._vllm = VllmEngineService(settings, self._pool, completions, self._api_keys)
        address = settings.openai
        self.http_server = None if address is None else self._make_http_server(address)
        self._closing: asyncio.Task[None] | None = None

    def make_server(self) -> grpc.aio.Server:
        """Return a gRPC server with options and interceptors as the settings say."""
        options = dict(SERVER_OPTIONS)
        # Above the limit on a request's size, so that most callers get an error with a reason.
        max_bytes = self._settings.limits.max_prompt_bytes + _ROOM_BYTES
        options["grpc.max_receive_message_length"] = max_bytes
        options["grpc.server_handshake_timeout_ms"] = HANDSHAKE_MILLISECONDS
        options["grpc.so_reuseport"] = int(self._settings.servers > 1)
        age = self._settings.limits.max_connection_age_seconds
        if age is not None:
            # Calls under way go on to their end, however long that takes.
            options["grpc.max_connection_age_ms"] = round(1e3 * age)
        guards = [AuthInterceptor(self._api_keys, self.service_names)]
        return grpc.aio.server(
            options=tuple(options.items()), interceptors=guards if self._api_keys.needed else ()
        )

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the TLS credentials that the settings name; None for plaintext."""
        certificate = self._certificate
        return None if certificate is None else server_credentials(lambda: certificate.value)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicer to `server`."""
        add_strictly(
            inference_pb2_grpc.add_InferenceServiceServicer_to_server,
            self._service,
            server,
            self._service.check_size,
        )
        add_strictly(
            vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server,
            self._vllm,
            server,
            self._service.check_tokenized_size,
        )

    async def start(self) -> None:
        """Load the tokenizer and wait for the first healthy verifier."""
        self._held_loop.start()
        if self.http_server is not None:
            await self.http_server.open()
        seconds = self._settings.poll_seconds
        if self._keys is not None:
            self._keep(self._keys.keep_current(seconds, lambda: None))
        if self._certificate is not None:
            self._keep(self._certificate.keep_current(seconds, self._renew_certificate))
        if self._tokenizer is None:
            self._tokenizer = await asyncio.to_thread(_load_tokenizer, self._settings.target)
        if self.http_server is not None:
            tokenizer = self._tokenizer
            self.http_server.open_chat(
                tokenizer.template, tokenizer.control_tokens, tokenizer.token_bytes
            )
        longest = await asyncio.to_thread(longest_token_bytes, self._tokenizer)
        self._service.open(self._tokenizer, longest)
        # Not before: with a verifier in the pool the server is called healthy.
        self._pool.start()
        logger.info("waiting for a verifier at %s", ", ".join(self._settings.verifiers))
        await self._pool.wait()
        self._warn_of_mismatch(self._tokenizer)
        self._keep(self._report_health())

    async def drain(self) -> None:
        """Refuse new requests; those admitted go on."""
        self._service.drain()
        if self.http_server is not None:
            # While calls over gRPC end too.
            self._closing = asyncio.ensure_future(self.http_server.close())

    async def stop(self) -> None:
        """Close the connections to the verifiers, once calls over HTTP have ended."""
        if self._closing is not None:
            await self._closing
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.stop()
        self._service.close()
        await asyncio.to_thread(self._traces.close)
        self._held_loop.stop()

    def inspect(self) -> Mapping[str, object]:
        """Return the numbers of requests held, and the states of the verifiers."""
        return {
            **self._service.state(),
            "longest_event_loop_hold_seconds": self._held_loop.longest_seconds,
            **self._pool.state(),
        }

    def _make_http_server(self, address: str) -> "HttpServer":
        # Imported here: aiohttp is large, and many servers do without.
        from blockdraft_server.openai.http_server import HttpServer

        service = self._service
        return HttpServer(
            self._settings,
            address,
            service.completions,
            service.tokens,
            self._pool,
            self._api_keys,
            self._registry,
        )

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the server stops."""
        self._tasks.append(asyncio.ensure_future(coroutine))

    def _renew_certificate(self) -> None:
        self._note_expiry()
        if self.http_server is not None:
            self.http_server.renew_certificate()

    def _note_expiry(self) -> None:
        if self._certificate is not None:
            self._metrics.tls_certificate_expiry.set(self._certificate.value.expires)

    async def _report_health(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            status = (
                health_pb2.HealthCheckResponse.SERVING
                if self._pool.capacity > 0
                else health_pb2.HealthCheckResponse.NOT_SERVING
            )
            for name in ("", *self.service_names):
                await self.health.set(name, status)

    def _warn_of_mismatch(self, tokenizer: "Tokenizer") -> None:
        limits = self._pool.limits
        if limits is not None and tokenizer.vocab_size > limits.vocabulary_size:
            logger.warning(
                "the tokenizer of %s knows %d tokens but the verifier's target only %d: "
                "they are not of the same model",
                self._settings.target,
                tokenizer.vocab_size,
                limits.vocabulary_size,
            )


async def run_server(settings: ServerSettings, traces: Traces) -> None:
    """Run the server until a signal stops it; errors are those of `ServerApp`."""
    app = ServerApp(settings, traces=traces)
    started = time.monotonic()

    async def on_ready() -> None:
        seconds, process = time.monotonic() - started, settings.process
        logger.info("%s on %s after %.1f s", settings.served_name, process.address, seconds)

    await serve(
        app,
        settings.process,
        server=app.make_server(),
        credentials=app.credentials(),
        health=app.health,
        reflection=not settings.production,
        on_ready=on_ready,
    )


def _key_file(path: Path) -> Reloaded[TenantsByKey]:
    name = f"{path} of --api-key-file"
    return Reloaded(name, [path], lambda: parse_keys(path.read_text(encoding="utf-8")))


def _certificate(tls: TlsSettings) -> Reloaded[Certificate]:
    files = tls.certificate, tls.key, tls.client_authorities
    return Reloaded(
        "the certificate of --tls-cert",
        [path for path in files if path is not None],
        lambda: read_certificate(*files),
    )


def _load_tokenizer(target: str) -> "Tokenizer":
    # Imported here: reading a checkpoint's tokenizer takes libraries that tests do without.
    from blockdraft_models.tokenizer.tokenizer import load_tokenizer
    from blockdraft_models.weights.resolve import resolve_target

    return load_tokenizer(resolve_target(target))
