"""A tiny target, and engines over it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from google.rpc.status_pb2 import Status
from jaxtyping import Array, Float, Int
from prometheus_client import CollectorRegistry, Counter, Gauge
from tests.fakes.drafting import DraftRule, ScriptedMethod, SessionLink
from tests.models.tiny import tiny_config

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_protos.v1 import verifier_pb2 as pb
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_runtime.status import ServiceError, error_from_proto
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.step import TargetStep
from blockdraft_verifier.device.step_runner import StepRunner
from blockdraft_verifier.drafting.link import DraftLink
from blockdraft_verifier.engine.listeners import TokensGained
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Usage

LAYER_IDS = (0, 1)
CONFIG = tiny_config(num_layers=2)
TINY_ENGINE = EngineSettings(
    page_size=4,
    num_pages=64,
    scheduler=SchedulerSettings(max_sequences=4, max_step_tokens=16, max_context_tokens=96),
    draft_policy="fixed",
    prompt_lookup=False,
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

    @property
    def usage(self) -> Usage:
        """What a completion that has ended consumed."""
        usage = self.events[-1].usage
        assert usage is not None
        return usage


class UnhurriedRunner(ModelRunner):
    """Compiles a step when it first runs: many of those that a service needs are never run here.

    It times none, and says that one takes as long as another.
    """

    def _compile(self, step: TargetStep, bucket: Bucket) -> Any:
        compiled = functools.cache(functools.partial(super()._compile, step, bucket))
        return lambda *arguments: compiled()(*arguments)

    def _run_padding(self, bucket: Bucket, context: int) -> float:
        """Run nothing."""
        return 0.001


def nothing(position: int, anchor: int, length: int) -> list[int]:
    return []


def scripted(draft: DraftRule = nothing, **shape: Any) -> ScriptedMethod:
    """Return a draft method for the tiny target that drafts what it is told to."""
    fits = {"layer_ids": LAYER_IDS, "hidden_size": CONFIG.hidden_size}
    return ScriptedMethod(draft, **{**fits, "vocab_size": CONFIG.vocab_size, **shape})


def link_to(draft: DraftRule) -> SessionLink:
    return SessionLink(scripted(draft))


def wrong(position: int, anchor: int, length: int) -> list[int]:
    """Draft a token that the tiny target is never seen to say after `anchor`."""
    return [(anchor + 1) % 256] * length


def engine_over(
    runner: StepRunner,
    config: EngineSettings = TINY_ENGINE,
    link: DraftLink | None = None,
    *,
    registry: CollectorRegistry | None = None,
    **options: Any,
) -> Engine:
    """Return an engine that drives a runner, ready for requests."""
    metrics = VerifierMetrics(registry or CollectorRegistry())
    engine = Engine(runner, config, link, CONFIG.vocab_size, metrics, **options)
    engine.warm_up()
    return engine


def make_engine(
    decoder: Decoder,
    link: DraftLink | None = None,
    config: EngineSettings = TINY_ENGINE,
    pages: int | None = None,
) -> Engine:
    """Return an engine that may use all pages of its cache, or only so many of them."""
    runner = UnhurriedRunner(decoder, config)
    scarce = replace(runner.settings, num_pages=pages or config.num_pages)
    return engine_over(runner, scarce, link)


def value_of(metric: Counter | Gauge) -> float:
    """Return the value of a metric without labels, or with all of them."""
    [family] = metric.collect()
    return next(each.value for each in family.samples if not each.name.endswith("_created"))


def repairs_of(engine: Engine) -> float:
    """Return how many differences the accepted-token sync has found."""
    [family] = engine.metrics.repairs.collect()
    return sum(each.value for each in family.samples if each.name.endswith("_total"))


def error_of(message: pb.SequenceTokens) -> ServiceError:
    status = Status()
    assert message.error.Unpack(status)
    error = error_from_proto(status)
    assert error is not None
    return error


def finish(engine: Engine) -> None:
    """Run an engine until nothing is left to do."""
    while engine.step():
        pass


def decode(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    """Run all requests to their end, together."""
    outcomes = [Outcome() for _ in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        engine.submit(request, outcome)
    finish(engine)
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
