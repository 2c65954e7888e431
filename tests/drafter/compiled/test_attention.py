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
from tests.drafter import reference

from blockdraft_drafter.compiled.attention import attend_in_chunks
from blockdraft_drafter.compiled.buffer import CHUNK, CacheView
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


@dataclass
class Batch:
    """A batch whose contexts have every length at a boundary; the last block is padding.

    Queries are [blocks, kv_heads, queries, group, head_dim], own keys and values each
    [blocks, kv_heads, keys, head_dim], those of contexts [slots, kv_heads, capacity, head_dim].
    """

    case: Case
    queries: Any
    own: Any
    layer: Any
    slots: list[int]
    lengths: list[int]

    @classmethod
    def random(cls, case: Case, seed: int, dtype: Any = np.float32) -> "Batch":
        rng = np.random.default_rng(seed)
        near = {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, case.capacity - 1, case.capacity}
        lengths = [length for length in sorted(near) if length <= case.capacity]
        lengths += rng.integers(0, case.capacity + 1, 2).tolist()
        rng.shuffle(lengths)
        # More slots than blocks, in any order; then a block of padding, which has none.
        slots = [*rng.permutation(len(lengths) + 2)[: len(lengths)].tolist(), len(lengths) + 2]

        def random(*shape: int, scale: float = 1.0) -> Any:
            return (scale * rng.standard_normal(shape)).astype(dtype)

        blocks, head_dim, scale = len(slots), case.head_dim, 3 * case.head_dim**-0.5
        queries = random(blocks, case.kv_heads, case.queries, case.group, head_dim, scale=scale)
        own = tuple(random(blocks, case.kv_heads, case.own, head_dim) for _ in range(2))
        layer = tuple(random(blocks + 1, case.kv_heads, case.capacity, head_dim) for _ in range(2))
        return cls(case, queries, own, layer, slots, [*lengths, 0])

    def run(self, form: str, first_kv_head: int = 0) -> Any:
        context = CacheView(
            jax.tree.map(jnp.asarray, self.layer),
            jnp.array(self.slots, jnp.int32),
            jnp.array(self.lengths, jnp.int32),
            jnp.int32(first_kv_head),
        )
        case = self.case
        attend = jax.jit(partial(FORMS[form], window=case.window, is_causal=case.is_causal))
        return attend(jnp.asarray(self.queries), jax.tree.map(jnp.asarray, self.own), context)

    def expected(self) -> np.ndarray:
        result = np.zeros(self.queries.shape)
        for block, (slot, length) in enumerate(zip(self.slots, self.lengths, strict=True)):
            # The own keys come behind the context, at the positions that follow it.
            known = (part[slot, :, :length] if length else part[0, :, :0] for part in self.layer)
            keys, values = (
                np.concatenate([before, mine[block]], 1).swapaxes(0, 1).astype(np.float64)
                for before, mine in zip(known, self.own, strict=True)
            )
            q = self.queries[block].astype(np.float64) * self.case.head_dim**0.5
            kv_heads, count, group, head_dim = q.shape
            rows = q.swapaxes(0, 1).reshape(count, kv_heads * group, head_dim)
            case = self.case
            attended = reference.attend(
                rows, keys, values, window=case.window, is_causal=case.is_causal
            )
            result[block] = attended.reshape(count, kv_heads, group, head_dim).swapaxes(0, 1)
        return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_definition(name: str, form: str) -> None:
    batch = Batch.random(CASES[name], seed=len(name))
    np.testing.assert_allclose(batch.run(form), batch.expected(), rtol=1e-4, atol=2e-5)


def test_forms_agree_in_bfloat16() -> None:
    """Products of bfloat16 are summed in float32 by both, so they differ by one rounding."""
    batch = Batch.random(CASES["published block"], seed=1, dtype=bfloat16)
    chunks, kernel = (np.asarray(batch.run(form), np.float32) for form in FORMS)
    np.testing.assert_allclose(kernel, chunks, rtol=2**-7, atol=2**-7)
    np.testing.assert_allclose(chunks, batch.expected(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_starts_at_any_kv_head(form: str) -> None:
    """A device that holds all KV heads attends with some of them."""
    batch = Batch.random(Case(1, 2, 64, 4, 4, CHUNK), seed=2)
    batch.layer = Batch.random(Case(3, 2, 64, 4, 4, CHUNK), seed=2).layer
    attended = batch.run(form, first_kv_head=2)
    batch.layer = tuple(part[:, 2:] for part in batch.layer)
    np.testing.assert_allclose(attended, batch.expected(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("window", [None, 30])
def test_kernel_reads_nothing_unseen(window: int | None) -> None:
    """Tiles that no query sees may hold anything: they are never folded in."""
    batch = Batch.random(Case(1, 2, 64, 4, 4, 5 * CHUNK, window=window), seed=3)
    batch.lengths = [2 * CHUNK + 9] * (len(batch.slots) - 1) + [0]
    expected = batch.expected()
    first = 0 if window is None else (batch.lengths[0] - window) // CHUNK * CHUNK
    for part in batch.layer:
        part[:, :, 3 * CHUNK :] = np.nan
        part[:, :, :first] = np.nan
    np.testing.assert_allclose(batch.run("kernel"), expected, rtol=1e-4, atol=2e-5)
