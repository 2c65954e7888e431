"""Steps and drafts that were compiled before: found without tracing, with the same results."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.tiny import LIKE_GEMMA3, LIKE_GPT_OSS, tiny_config
from tests.test_programs import SMOLLM2, TINY, programs_of
from tests.verifier.support import TINY_ENGINE, decode, engine_over, random_requests, tiny_decoder

from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.kept_programs import KeptPrograms, program_key
from blockdraft_models.weights.quantization import hold_int8
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import CacheLayout
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.step import TargetStep

# Programs of these differ, if only by a number.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"kind": "qwen3"},
    "other theta": {"rope_theta": 5000.0},
    "other epsilon": {"rms_norm_eps": 1e-6},
    "like gpt-oss": {"num_layers": 2, **LIKE_GPT_OSS},
    "like Gemma 3": {"num_layers": 2, **LIKE_GEMMA3},
    "fewer layers": {"num_layers": 2},
}
SMALL = Bucket(1, 4, 4)
FEATURES = [
    NO_FEATURES,
    FeatureForm((0,)),
    FeatureForm((1,)),
    FeatureForm((0, 1)),
]


def key_of(
    decoder: Decoder,
    *,
    features: FeatureForm = NO_FEATURES,
    bucket: Bucket = SMALL,
    num_pages: int = 8,
    max_block: int = 4,
) -> str | None:
    graph, weights = nnx.split(decoder)
    layout = CacheLayout.of(
        decoder.config,
        num_pages,
        4,
        decoder.dtype,
        mesh=None,
        stacked=isinstance(decoder, ScannedDecoder),
    )
    step = TargetStep(graph, layout, 8, features, max_block)
    return program_key("blockdraft_verifier", step.described(weights, bucket), jax.devices()[:1])


def decoder_of(dtype: Any = jnp.float32, **shape: Any) -> Decoder:
    return Decoder(tiny_config(**shape), dtype=dtype, rngs=nnx.Rngs(0))


def test_each_step_has_a_key_of_its_own() -> None:
    decoder = decoder_of()
    keys = [key_of(decoder_of(**shape)) for shape in KINDS.values()]
    keys += [key_of(decoder_of(jnp.bfloat16)), key_of(hold_int8(decoder_of(jnp.bfloat16)))]
    keys += [key_of(ScannedDecoder(decoder_of()))]
    keys += [key_of(decoder, features=features) for features in FEATURES[1:]]
    keys += [key_of(decoder, bucket=bucket) for bucket in (Bucket(1, 8, 8), Bucket(2, 8, 8))]
    keys += [key_of(decoder, num_pages=9), key_of(decoder, max_block=8)]
    assert None not in keys
    assert max(Counter(keys).values()) == 1


def test_weights_and_their_values_make_no_difference() -> None:
    config = tiny_config()
    other = Decoder(config, dtype=jnp.float32, rngs=nnx.Rngs(1))
    assert key_of(decoder_of()) == key_of(other)
    rng = np.random.default_rng(0)
    projected = [
        FeatureForm((0, 1), FeatureProjection(jnp.asarray(rng.normal(size=(32, 64)))), name)
        for name in ("one", "another")
    ]
    first, second = (key_of(other, features=features) for features in projected)
    assert first == second != key_of(other, features=FeatureForm((0, 1)))


@pytest.mark.usefixtures("jax_keeps_nothing", "own_programs")
def test_an_engine_says_the_same_by_kept_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, lowered = KeptPrograms(tmp_path, "blockdraft_verifier"), Counter[Bucket]()
    lower = TargetStep.lower

    def counted(step: TargetStep, weights: Any, bucket: Bucket) -> jax.stages.Lowered:
        lowered[bucket] += 1
        return lower(step, weights, bucket)

    monkeypatch.setattr(TargetStep, "lower", counted)
    config = replace(
        TINY_ENGINE, scheduler=replace(TINY_ENGINE.scheduler, max_sequences=1, max_step_tokens=4)
    )
    requests = random_requests(3, count=4, max_output_tokens=12)
    said = []
    for seed in (0, 0, 1):
        runner = ModelRunner(tiny_decoder(seed), config, kept_programs=kept)
        said.append([each.tokens for each in decode(engine_over(runner, config), requests)])
        assert set(lowered.values()) == {1}
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("method", ["dflash", "eagle3"])
def test_each_draft_program_has_a_key_of_its_own(method: str) -> None:
    keys = [
        program_key("blockdraft_drafter", (programs, kind, size), jax.devices()[:1])
        for config, dtype in ((TINY, "float32"), (TINY, "bfloat16"), (SMOLLM2, "bfloat16"))
        for programs in (programs_of(config, method, dtype),)
        for kind, size in (("append", 8), ("draft", 1), ("draft", 8))
    ]
    assert None not in keys
    assert max(Counter(keys).values()) == 1
