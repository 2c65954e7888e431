"""Keys and values in fp8: the same numbers on every device, the same tokens drafted and plain."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxtyping import Array
from tests.command_lines import parse
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.device.test_kernel_attention import (
    NUM_PAGES,
    PAGE_SIZE,
    TOKENS,
    random_batch,
)
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import (
    TINY_ENGINE,
    decode,
    link_to,
    make_engine,
    random_requests,
    tiny_decoder,
)

from blockdraft_models.precision import FP8, rounded_to_fp8
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.command import CONFIGURATION
from blockdraft_verifier.device import portable_attention as portable
from blockdraft_verifier.device.cache import CacheLayout, allocate_kv
from blockdraft_verifier.device.paged_attention import PagedAttend
from blockdraft_verifier.loading import load_target

SMALL = SchedulerSettings(max_sequences=2, max_step_tokens=8, max_context_tokens=64)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_numbers_are_rounded_to_the_nearest_and_never_infinite(dtype: jnp.dtype) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(0, 1, 2000) * 10.0 ** rng.integers(-4, 4, 2000)
    x = jnp.asarray(
        [*drawn, 0.0, -0.0, 448, 449, 463, 464, 480, 1e30, -1e30, 2.0**-9, 2.0**-10], dtype
    )
    wide = np.asarray(x, np.float64)
    expected = np.clip(wide, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    actual = np.asarray(jax.jit(rounded_to_fp8)(x))
    np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))
    assert np.isfinite(actual.astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_cache_of_wider_elements_holds_the_same_numbers(
    dtype: jnp.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CPU. The compiler must not take out a conversion there and back."""
    monkeypatch.setattr(portable, "in_kernels", lambda: False)
    rng = np.random.default_rng(1)
    batch = random_batch(rng, [5, 1, 3], [5, 16, 9])
    q, k, v = (jnp.asarray(rng.normal(0, 3, (TOKENS, n, 64)), dtype) for n in (4, 2, 2))
    outs: dict[str, tuple[Array, np.ndarray]] = {}
    for held in (jnp.dtype(jnp.float32), FP8):
        layout = CacheLayout(1, NUM_PAGES, PAGE_SIZE, 2, 64, held, fp8=True)
        [cache] = allocate_kv(layout)
        out, cache = jax.jit(PagedAttend(batch, layout))(q, k, v, cache)
        outs[held.name] = out[:9], np.asarray(cache, np.float32)
    (wide, wide_cache), (narrow, narrow_cache) = outs.values()
    np.testing.assert_array_equal(wide_cache, narrow_cache)
    assert np.count_nonzero(wide_cache.any(axis=-1)) == 9 * 4
    np.testing.assert_array_equal(wide_cache, wide_cache.astype(ml_dtypes.float8_e4m3fn))
    np.testing.assert_allclose(np.asarray(wide, np.float32), narrow, rtol=1e-2, atol=1e-2)


def test_a_page_takes_a_byte_for_each_number() -> None:
    pages = [CacheLayout(2, 8, PAGE_SIZE, 2, 64, held).page_bytes for held in (FP8, jnp.bfloat16)]
    assert pages == [2 * PAGE_SIZE * 4 * 64, 2 * pages[0]]


@pytest.mark.parametrize("sampled", [False, True])
def test_drafted_output_is_the_plain_one(*, sampled: bool) -> None:
    settings = replace(TINY_ENGINE, scheduler=SMALL, kv_cache_dtype="fp8")
    plain = make_engine(tiny_decoder(), None, settings)
    requests = random_requests(2, 3, 12)
    if not sampled:
        requests = [replace(r, sampling=replace(r.sampling, temperature=0.0)) for r in requests]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    drafting = make_engine(tiny_decoder(), link_to(oracle(requests, expected, 0.7)), settings)
    outcomes = decode(drafting, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    drafted = sum(event.drafted for outcome in outcomes for event in outcome.events)
    accepted = sum(event.accepted for outcome in outcomes for event in outcome.events)
    assert 0 < accepted < drafted


def test_the_flag_reaches_the_cache_and_the_identity(tmp_path: Path) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path)
    fingerprints = []
    for kind in ("auto", "fp8"):
        sizes = ("--num-pages", "8", "--max-model-len", "64", f"--kv-cache-dtype={kind}")
        settings = CONFIGURATION.resolve(parse(CONFIGURATION, f"--target={tmp_path}", *sizes), {})
        target = load_target(settings)
        assert target.runner.layout.fp8 == (kind == "fp8")
        fingerprints.append(target.computation.fingerprint)
    # A completion begun with the one is never continued with the other.
    assert len(set(fingerprints)) == 2
