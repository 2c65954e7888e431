"""A drafter on a thread of the verifier's process."""

import asyncio
import threading
from collections.abc import Mapping

import uvloop
from flax import nnx
from jax import Array
from prometheus_client import REGISTRY, CollectorRegistry

from blockdraft_drafter.app import DrafterApp, HostTarget
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_hosted.link import LocalLink, LocalTransport
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.stored import ScaledMatrix
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.weights.checkpoint import Checkpoint
from blockdraft_models.weights.loading import EmbeddingAndHead
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.start_progress import Report
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.drafting.handshake import DrafterDescription, check_description
from blockdraft_verifier.drafting.link import DraftLink


class ThreadedDrafter:
    """Runs a drafter with an event loop of its own, as in a process of its own.

    It is a `HostedDrafter` of the verifier. What a process isolates is lost: a drafter that takes
    its process down takes the verifier down. One that only fails is left alone until the next
    start, and everything is decoded plainly.
    """

    def __init__(
        self,
        settings: DrafterSettings,
        kept_programs: KeptPrograms | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Load nothing yet; programs that were compiled before are in `kept_programs`."""
        self.launching = threading.Lock()
        self._settings, self._registry = settings, registry
        self._kept_programs = kept_programs
        self._app: DrafterApp | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drafter", daemon=True)

    def load(self, target: Decoder, report: Report) -> object:
        """Load and compile; return all arrays that it has on the devices, a pytree."""
        self._thread.start()
        host = HostTarget(_matrices(target), nnx.state(target), self.launching, report)
        loading = asyncio.run_coroutine_threadsafe(self._start(host), self._loop)
        return loading.result()

    def connect(self, target: Checkpoint) -> DraftLink:
        """Return the link to it; ValueError if it does not fit the target."""
        assert self._app is not None, "load comes before"
        app, service = self._app, self._app.service
        response = service.describe(target.fingerprint)
        check_description(response, target.config.num_layers, target.config.hidden_size)
        projection = service.loaded.method.spec.projection
        layer_ids, fingerprint = tuple(response.target_layer_ids), response.projection.fingerprint
        form = FeatureForm(layer_ids, projection, fingerprint)

        def open_stream() -> LocalTransport | None:
            if app.failed:
                return None
            described = service.describe(target.fingerprint)
            description = DrafterDescription.from_proto(described, form)
            return LocalTransport(service, self._loop, description)

        return LocalLink(open_stream)

    def inspect(self) -> Mapping[str, object]:
        """Return the state of the drafter; empty before it is loaded."""
        return {} if self._app is None else self._app.inspect()

    def stop(self) -> None:
        """Stop the drafter, then its thread."""
        if self._app is not None:
            asyncio.run_coroutine_threadsafe(self._app.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self, host: HostTarget) -> object:
        # Nothing waits for the event: a drafter that has failed gets no stream any more.
        app = DrafterApp(
            self._settings,
            asyncio.Event(),
            self._registry,
            kept_programs=self._kept_programs,
            host=host,
        )
        await app.start()
        self._app = app
        method = app.service.loaded.method
        assert isinstance(method, CompiledMethod)
        return method.arrays


def _matrices(target: Decoder) -> EmbeddingAndHead | None:
    """Return embedding and head where they are arrays, not blocks as stored in a file."""
    if not hasattr(target, "embedding"):  # of a module of transformers
        return None
    head = None if target.head is None else target.head.matrix
    embedding = target.embedding.matrix
    if not isinstance(embedding, Array) or not isinstance(head, Array | ScaledMatrix | None):
        return None
    return EmbeddingAndHead(embedding, head)
