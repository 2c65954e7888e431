"""HTTP routes about the service itself: its models, health, version and metrics."""

from aiohttp import web
from google.protobuf import json_format
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from blockdraft_runtime import version
from blockdraft_server.model_details import model_details
from blockdraft_server.openai.errors import error_body
from blockdraft_server.request import ServedModel
from blockdraft_server.routing.pool import VerifierPool
from blockdraft_server.vllm.metrics import VllmMetrics


class ServiceRoutes:
    """Handlers of requests about a service."""

    def __init__(self, model: ServedModel, pool: VerifierPool, registry: CollectorRegistry) -> None:
        """Describe the verifiers of a pool and the metrics of a registry."""
        self._model = model
        self._pool = pool
        self._registry = registry
        # Of its own: what scrapes the metrics port has the verifiers' own numbers.
        self._vllm_names = CollectorRegistry()
        self._vllm_names.register(VllmMetrics(model.name, pool))

    async def models(self, request: web.Request) -> web.Response:
        """List the model, and its adapters."""
        adapters = ("", *self._model.adapters())
        return web.json_response({"object": "list", "data": list(map(self._described, adapters))})

    async def model(self, request: web.Request) -> web.Response:
        """Describe the model in the path."""
        adapter = self._model.adapter(request.match_info["model"])
        return web.json_response(self._described(adapter))

    async def health(self, request: web.Request) -> web.Response:
        """Answer with 200 if a verifier takes requests, else with 503 and the reason."""
        if self._pool.capacity > 0:
            return web.Response()
        status, body = error_body(self._pool.unavailable(), request.path)
        return web.json_response(body, status=status)

    async def version(self, request: web.Request) -> web.Response:
        """Name the version."""
        return web.json_response({"version": version()})

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose the metrics of this process, and the verifiers' under vLLM's names."""
        body = b"".join(map(generate_latest, (self._registry, self._vllm_names)))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def _described(self, adapter: str) -> dict[str, object]:
        name = self._model.name
        details = model_details(name, self._pool.description)
        return {
            "id": f"{name}:{adapter}" if adapter else name,
            **({"parent": name} if adapter else {}),
            "object": "model",
            "created": 0,
            "owned_by": "blockdraft",
            "max_model_len": self._pool.ready_limits.max_context_tokens,
            "blockdraft": json_format.MessageToDict(details, preserving_proto_field_name=True),
        }
