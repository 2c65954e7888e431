"""A tiny target and engines over it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from prometheus_client import CollectorRegistry
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.drafting.link import DraftLink
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest

LAYER_IDS = (0, 2)
CONFIG = tiny_config()
TINY_ENGINE = EngineSettings(
    page_size=4,
    num_pages=64,
    scheduler=SchedulerSettings(max_sequences=4, max_step_tokens=16, max_context_tokens=96),
    draft_policy="fixed",
    lookup=False,
    draft_timeout_seconds=0.02,
)


def tiny_decoder(seed: int = 0) -> Decoder:
    return Decoder(CONFIG, rngs=nnx.Rngs(seed))


PADDED_LENGTH = 96


@nnx.jit
def _captured(decoder: Decoder, ids: Int[Array, " tokens"]) -> Float[Array, "tokens width"]:
    positions = jnp.arange(PADDED_LENGTH, dtype=jnp.int32)
    attend = DenseAttend(1, PADDED_LENGTH)
    return decoder(ids, positions, [None] * CONFIG.num_layers, attend, LAYER_IDS).captured


def dense_features(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """Return the features of whole, unpaged `tokens`."""
    # Causality keeps the padding out of the features before it.
    ids = np.zeros(PADDED_LENGTH, np.int32)
    ids[: len(tokens)] = tokens
    return np.asarray(_captured(decoder, jnp.asarray(ids)))[: len(tokens)]


@dataclass
class Outcome:
    """What a request's listener heard."""

    tokens: list[int] = field(default_factory=list)
    events: list[TokensGained] = field(default_factory=list)

    def __call__(self, event: TokensGained) -> None:
        self.events.append(event)
        self.tokens.extend(event.token_ids)


def make_engine(
    decoder: Decoder,
    link: DraftLink | None = None,
    config: EngineSettings = TINY_ENGINE,
    registry: CollectorRegistry | None = None,
    pages: int | None = None,
) -> Engine:
    """Return an engine that may use all pages of its cache, or only so many of them."""
    metrics = VerifierMetrics(registry or CollectorRegistry())
    runner = ModelRunner(decoder, config)
    config = replace(config, num_pages=pages or config.num_pages)
    engine = Engine(runner, config, link, CONFIG.vocab_size, metrics)
    engine.warm_up()
    return engine


def decode(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run all requests to their end, together."""
    outcomes = [Outcome() for _ in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        engine.submit(request, outcome)
    while engine.step():
        pass
    return outcomes


def random_requests(
    seed: int, count: int = 8, max_output_tokens: int = 16
) -> list[GenerationRequest]:
    """Return a mix of greedy and sampled requests of many lengths."""
    rng = np.random.default_rng(seed)
    requests = []
    for index in range(count):
        sampling = (
            Sampling()
            if index % 2
            else Sampling(temperature=0.7, top_p=0.9, seed=int(rng.integers(-(2**62), 2**62)))
        )
        prompt = tuple(int(token) for token in rng.integers(0, 256, rng.integers(1, 40)))
        requests.append(
            GenerationRequest(
                f"r{index}",
                prompt,
                sampling=sampling,
                max_output_tokens=int(rng.integers(1, max_output_tokens + 1)),
            )
        )
    return requests
