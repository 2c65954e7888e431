"""The self-test on tiny targets: it passes batch-invariant steps and names others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float
from tests.models.quantized import int8_decoder
from tests.models.tiny import LIKE_QWEN3_5, tiny_config
from tests.verifier.support import (
    TINY_ENGINE,
    decode,
    engine_over,
    make_engine,
    random_requests,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier import self_test as module
from blockdraft_verifier.device import recurrence
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.exactness import Exactness, InexactError, find_classes
from blockdraft_verifier.self_test import enforce, self_test

# Few shapes to compile; with blocks of 4, some that compute fewer logits than they have tokens.
BFLOAT16 = replace(
    TINY_ENGINE,
    dtype="bfloat16",
    prompt_lookup=True,
    prompt_lookup_block=4,
    scheduler=replace(TINY_ENGINE.scheduler, max_step_tokens=8),
)
# Fewer still, for targets that are at fault in any of them.
SMALL = replace(
    BFLOAT16, prompt_lookup=False, scheduler=replace(BFLOAT16.scheduler, max_step_tokens=4)
)


# Of targets with states, to the third chunk.
STATES = replace(
    BFLOAT16,
    page_size=16,
    scheduler=replace(BFLOAT16.scheduler, max_step_tokens=32, max_context_tokens=192),
)


class ShapeDependent(Decoder):
    """A decoder whose rounding depends on the shape of the step, by far less than a logit."""

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        return super().logits(hidden) * (1 + 1e-6 * (hidden.shape[0] > 1))


class RarelyShapeDependent(Decoder):
    """A decoder whose rounding depends on the shape of the step at one position in a hundred."""

    def __call__(self, token_ids: Any, positions: Any, *more: Any) -> Any:
        output = super().__call__(token_ids, positions, *more)
        rare = (positions[:, None] % 100 == 90) & (token_ids.shape[0] > 1)
        return output._replace(hidden=jnp.where(rare, output.hidden * 1.5, output.hidden))


class RowDependent(Decoder):
    """A decoder whose rounding depends on the position of a row in the step."""

    def logits(self, hidden: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
        place = jnp.arange(hidden.shape[0])[:, None]
        return super().logits(hidden) + 1e-4 * (place > 0).astype(jnp.float32)


def compiled(decoder: Decoder, settings: EngineSettings = BFLOAT16) -> ModelRunner:
    """Return what an engine without a drafter compiles."""
    runner = ModelRunner(decoder, settings)
    runner.compile(NO_FEATURES, settings.prompt_lookup_block if settings.prompt_lookup else 1)
    return runner


def tiny(kind: type[Decoder] = Decoder, num_layers: int = 2, dtype: Any = jnp.bfloat16) -> Decoder:
    return kind(tiny_config(num_layers=num_layers), dtype=dtype, rngs=nnx.Rngs(0))


def faulty(kind: type[Decoder], settings: EngineSettings = SMALL) -> ModelRunner:
    return compiled(tiny(kind, num_layers=1), settings)


def with_states(dtype: str) -> Decoder:
    shape = {**LIKE_QWEN3_5, "num_layers": 2, "recurrent": (True, False)}
    return Decoder(tiny_config(**shape), dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))


def test_what_is_rare_takes_more_positions() -> None:
    limits = replace(SMALL.scheduler, max_context_tokens=192)
    runner = faulty(RarelyShapeDependent, replace(SMALL, num_pages=160, scheduler=limits))
    assert self_test(runner).exact
    assert not self_test(runner, span=27).exact


@pytest.mark.parametrize(("pages", "context"), [(2, 8), (1, 4)])
def test_small_caches_have_room_for_it(pages: int, context: int) -> None:
    limits = replace(SMALL.scheduler, max_context_tokens=context)
    settings = replace(SMALL, num_pages=pages, scheduler=limits)
    found = self_test(compiled(tiny(num_layers=1), settings))
    assert found.exact, found.summary()


def test_an_engine_tests_what_it_compiled_and_decodes_the_same_after_it() -> None:
    decoder = tiny()
    plain = make_engine(decoder, config=BFLOAT16)
    runner = ModelRunner(decoder, BFLOAT16)
    tested = engine_over(runner, BFLOAT16, self_test=lambda runner, seconds: self_test(runner))
    assert plain.exactness is None
    assert tested.exactness is not None
    assert tested.exactness.exact, tested.exactness.summary()
    assert tested.exactness.classes == (runner.buckets,)
    [family] = tested.metrics.numerics_classes.collect()
    assert family.samples[0].value == 1
    requests = random_requests(3, count=6)
    for one, other in zip(decode(plain, requests), decode(tested, requests), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)


def enforced(kind: type[Decoder], *, allow_inexact: bool = False) -> Engine:
    """Return an engine that was tested as in service, as if all its steps took as long."""
    runner = ModelRunner(tiny(kind, num_layers=1), SMALL)

    def test(runner: ModelRunner, seconds: Mapping[Bucket, float]) -> Exactness:
        return enforce(runner, dict.fromkeys(seconds, 1.0), allow_inexact=allow_inexact)

    return engine_over(runner, SMALL, self_test=test)


def test_shapes_that_round_differently_are_padded_and_decode_alone_as_in_a_crowd(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = enforced(ShapeDependent)
    assert engine.exactness is not None
    assert engine.exactness.exact
    assert {bucket.choices for bucket in engine.exactness.padded} == {1}
    assert "1x1 1x2 1x4 are padded" in engine.exactness.summary()
    assert any("steps of 1x2 are padded to 2x2 and take" in line for line in caplog.messages)
    # What is expected of steps no longer counts on the small one.
    costs = engine.lengths.costs
    assert costs is not None
    assert Bucket(1, 1, 1) not in costs.steps.by_bucket
    [family] = engine.metrics.padded_shapes.collect()
    assert family.samples[0].value == len(engine.exactness.padded)
    requests = random_requests(5, count=6)
    for request, crowd in zip(requests, decode(engine, requests), strict=True):
        engine.forget_prefixes()
        [alone] = decode(engine, [request])
        np.testing.assert_array_equal(alone.tokens, crowd.tokens)


def test_what_no_padding_mends_is_refused() -> None:
    with pytest.raises(InexactError, match="--allow-inexact"):
        enforced(RowDependent)
    engine = enforced(RowDependent, allow_inexact=True)
    assert engine.exactness is not None
    assert not engine.exactness.exact
    [family] = engine.metrics.numerics_classes.collect()
    assert family.samples[0].labels == {"dtype": "bfloat16"}
    assert family.samples[0].value > 1


def test_float32_is_padded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Bucket(1, 1, 1), Bucket(1, 2, 2)
    found = find_classes("float32", {one: [b"a"], two: [b"b"]})
    monkeypatch.setattr(module, "self_test", lambda runner: found)
    runner = ModelRunner(tiny(num_layers=1, dtype=jnp.float32), SMALL)
    mended = enforce(runner, {one: 1.0, two: 1.1}, allow_inexact=False)
    assert (mended.exact, mended.padded) == (True, (one,))
    assert enforce(runner, {one: 1.0, two: 1.1}, allow_inexact=True) is found


def test_a_few_rows_of_a_step_are_compared_too() -> None:
    class CrowdDependent(Decoder):
        """A decoder that rounds otherwise where a row of a step of four is padding."""

        def __call__(self, token_ids: Any, positions: Any, *more: Any) -> Any:
            output = super().__call__(token_ids, positions, *more)
            padded = (token_ids.shape[0] == 4) & (jnp.sum(positions > 0) == 3)
            hidden = jnp.where(padded, output.hidden * 1.5, output.hidden)
            return output._replace(hidden=hidden)

    assert not self_test(faulty(CrowdDependent)).exact


@pytest.mark.parametrize("rows", [1, 4])
def test_the_last_places_of_a_step_are_compared_too(rows: int) -> None:
    class PlaceDependent(Decoder):
        """A decoder that rounds otherwise from the 24th place of a step on."""

        def __call__(self, token_ids: Any, positions: Any, *more: Any) -> Any:
            output = super().__call__(token_ids, positions, *more)
            late = jnp.arange(token_ids.shape[0])[:, None] >= 24
            return output._replace(hidden=jnp.where(late, output.hidden * 1.5, output.hidden))

    limits = replace(SMALL.scheduler, max_sequences=rows, max_step_tokens=32)
    settings = replace(SMALL, num_pages=64, scheduler=limits)
    assert not self_test(faulty(PlaceDependent, settings)).exact


@pytest.mark.parametrize(("dtype", "span"), [("float32", 8), ("bfloat16", 8), ("bfloat16", 40)])
def test_states_do_not_depend_on_the_step(dtype: str, span: int) -> None:
    runner = compiled(with_states(dtype), STATES)
    result = self_test(runner, span)
    assert result.exact, result.summary()


@pytest.mark.usefixtures("own_programs")
def test_a_state_written_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of the one that the next step goes out from."""
    replaced = recurrence._replaced

    def always(array: Any, place: Any, part: Any, where: Any) -> Any:
        return replaced(array, place, part, where if where.ndim else jnp.bool_(True))

    monkeypatch.setattr(recurrence, "_replaced", always)
    assert not self_test(compiled(with_states("float32"), STATES)).exact


def test_int8_weights_are_compared_as_they_are_served(tmp_path: Path) -> None:
    decoder = int8_decoder(tiny(num_layers=1), tmp_path)
    decoder.__class__ = ShapeDependent
    assert not self_test(compiled(decoder, SMALL)).exact
