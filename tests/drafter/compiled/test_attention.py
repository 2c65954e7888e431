"""Both forms of block attention, chunks in JAX and the TPU kernel, against the definition."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from tests.drafter.reference_attention import reference_attention

from blockdraft_drafter.compiled.attention import attend_in_chunks
from blockdraft_drafter.compiled.buffer import CHUNK, ContextView
from blockdraft_drafter.compiled.kernel import attend_in_kernel

FORMS: dict[str, Callable[..., jax.Array]] = {
    "chunks": attend_in_chunks,
    "kernel": partial(attend_in_kernel, interpret=True),
}


@dataclass(frozen=True)
class Case:
    """Shapes of a batch; `own` counts own keys, `queries` those at the last of them."""

    kv_heads: int
    group: int
    head_dim: int
    queries: int
    own: int
    capacity: int
    window: int | None = None
    is_causal: bool = False


CASES = {
    "published block": Case(2, 4, 128, 16, 16, 3 * CHUNK),
    "one head a group": Case(3, 1, 64, 8, 8, 2 * CHUNK),
    "causal": Case(1, 2, 64, 5, 5, CHUNK, is_causal=True),
    "window within the block": Case(2, 2, 64, 8, 8, 3 * CHUNK, window=3),
    "window of one": Case(1, 1, 64, 4, 4, CHUNK, window=1),
    "window across the block": Case(1, 4, 64, 8, 8, 3 * CHUNK, window=20),
    "window of a tile": Case(1, 2, 128, 4, 4, 3 * CHUNK, window=CHUNK, is_causal=True),
    "window beyond the context": Case(1, 2, 64, 4, 4, 2 * CHUNK, window=1000),
    "wide tiles": Case(1, 2, 64, 4, 4, 8 * CHUNK, window=5 * CHUNK),
    "first of a chain": Case(2, 2, 64, 1, 1, 2 * CHUNK, is_causal=True),
    "last of a chain": Case(2, 4, 128, 1, 7, 3 * CHUNK, is_causal=True),
    "chain beyond eight": Case(1, 1, 64, 1, 9, CHUNK, is_causal=True),
}


def batch(case: Case, seed: int, dtype: Any = np.float32) -> tuple[Any, Any, Any, Any, Any]:
    """Return queries, own, layer, slots and lengths, with every length at a boundary."""
    rng = np.random.default_rng(seed)
    near = {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, case.capacity - 1, case.capacity}
    lengths = [length for length in sorted(near) if length <= case.capacity]
    lengths += rng.integers(0, case.capacity + 1, 2).tolist()
    rng.shuffle(lengths)
    # More slots than blocks, in any order; then a block of padding, which has none.
    slots = [*rng.permutation(len(lengths) + 2)[: len(lengths)].tolist(), len(lengths) + 2]
    lengths = [*lengths, 0]

    def random(*shape: int, scale: float = 1.0) -> Any:
        return (scale * rng.standard_normal(shape)).astype(dtype)

    blocks, head_dim = len(slots), case.head_dim
    scale = 3 * head_dim**-0.5
    queries = random(blocks, case.kv_heads, case.queries, case.group, head_dim, scale=scale)
    own = tuple(random(blocks, case.kv_heads, case.own, head_dim) for _ in range(2))
    layer = tuple(random(blocks + 1, case.kv_heads, case.capacity, head_dim) for _ in range(2))
    return queries, own, layer, slots, lengths


def run(form: str, case: Case, inputs: tuple[Any, Any, Any, Any, Any]) -> Any:
    queries, own, layer, slots, lengths = inputs
    context = ContextView(
        jax.tree.map(jnp.asarray, layer),
        jnp.array(slots, jnp.int32),
        jnp.array(lengths, jnp.int32),
    )
    attend = jax.jit(partial(FORMS[form], window=case.window, is_causal=case.is_causal))
    return attend(jnp.asarray(queries), jax.tree.map(jnp.asarray, own), context)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_definition(name: str, form: str) -> None:
    case = CASES[name]
    inputs = batch(case, seed=len(name))
    expected = reference_attention(*inputs, window=case.window, is_causal=case.is_causal)
    np.testing.assert_allclose(run(form, case, inputs), expected, rtol=1e-4, atol=2e-5)


def test_forms_agree_in_bfloat16() -> None:
    """Products of bfloat16 are summed in float32 by both, so they differ by one rounding."""
    case = CASES["published block"]
    inputs = batch(case, seed=1, dtype=bfloat16)
    chunks, kernel = (np.asarray(run(form, case, inputs), np.float32) for form in FORMS)
    np.testing.assert_allclose(kernel, chunks, rtol=2**-7, atol=2**-7)
    expected = reference_attention(*inputs, window=case.window, is_causal=case.is_causal)
    np.testing.assert_allclose(chunks, expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_starts_at_any_kv_head(form: str) -> None:
    """A device that holds all KV heads attends with some of them."""
    case = Case(1, 2, 64, 4, 4, CHUNK)
    queries, own, _, slots, lengths = batch(case, seed=2)
    _, _, layer, _, _ = batch(Case(3, 2, 64, 4, 4, CHUNK), seed=2)
    context = ContextView(
        jax.tree.map(jnp.asarray, layer),
        jnp.array(slots, jnp.int32),
        jnp.array(lengths, jnp.int32),
        jnp.int32(2),
    )
    attended = FORMS[form](
        jnp.asarray(queries), jax.tree.map(jnp.asarray, own), context, window=None, is_causal=False
    )
    third = tuple(part[:, 2:] for part in layer)
    expected = reference_attention(
        queries, own, third, slots, lengths, window=None, is_causal=False
    )
    np.testing.assert_allclose(attended, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("window", [None, 30])
def test_kernel_reads_nothing_unseen(window: int | None) -> None:
    """Tiles that no query sees may hold anything: they are never folded in."""
    case = Case(1, 2, 64, 4, 4, 5 * CHUNK, window=window)
    queries, own, layer, slots, _ = batch(case, seed=3)
    lengths = [2 * CHUNK + 9] * (len(slots) - 1) + [0]
    expected = reference_attention(
        queries, own, layer, slots, lengths, window=window, is_causal=False
    )
    first = 0 if window is None else (lengths[0] - window) // CHUNK * CHUNK
    for part in layer:
        part[:, :, 3 * CHUNK :] = np.nan
        part[:, :, :first] = np.nan
    attended = run("kernel", case, (queries, own, layer, slots, lengths))
    np.testing.assert_allclose(attended, expected, rtol=1e-4, atol=2e-5)
