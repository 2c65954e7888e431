"""The experts of a layer against NumPy, by all ways of computing them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.tiny import LIKE_GPT_OSS, tiny_config

from blockdraft_models.decoder import experts as module
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.experts import ExpertMaps, Experts
from blockdraft_models.kernels import tpu
from blockdraft_models.weights.quantization import quantize

PLAIN: dict[str, Any] = {"num_experts": 6, "experts_per_token": 3, "normalized_routing": False}
CONFIGS = {"softmax over all": PLAIN, "biases": {**LIKE_GPT_OSS, "windows": ()}}
WAYS: dict[str, Callable[..., Any]] = {
    "one by one": module._one_by_one,
    "group by group": partial(module._group_by_group, module._grouped),
    "on TPU": partial(module._group_by_group, partial(tpu.grouped_product, interpret=True)),
}


def random_experts(config: DecoderConfig, seed: int = 0) -> Experts:
    made = Experts(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    rng = np.random.default_rng(seed)
    for bias in (made.router_bias, made.gate.bias, made.up.bias, made.down.bias):
        if bias is not None:
            bias[...] = jnp.asarray(rng.normal(size=bias.shape), jnp.float32)
    return made


def hold_int8(experts: Experts) -> None:
    for part in (experts.gate, experts.up, experts.down):
        assert isinstance(part, ExpertMaps)
        values, scale = quantize(np.asarray(part.weight[...]), 1 if part.to_hidden else 2)
        part.hold_int8()
        assert part.scale is not None
        part.weight[...], part.scale[...] = jnp.asarray(values), jnp.asarray(scale)


# Jitted, as what is for TPU cannot run eagerly.
@jax.jit
def run(experts: Experts, x: jax.Array) -> jax.Array:
    return experts(x)


def reference(experts: Experts, x: np.ndarray) -> np.ndarray:
    """One token and one expert at a time, in float64."""
    config = experts.config
    wide: Any = jax.tree.map(
        lambda a: np.asarray(a, np.float64), nnx.to_pure_dict(nnx.state(experts))
    )
    out = np.zeros(x.shape)
    for number, row in enumerate(x.astype(np.float64)):
        scores = wide["router"] @ row + wide.get("router_bias", 0.0)
        best = np.argsort(-scores)[: config.experts_per_token]
        among = scores[best] if config.normalized_routing else scores
        shares = np.exp(scores[best] - scores.max()) / np.exp(among - scores.max()).sum()
        for expert, share in zip(best, shares, strict=True):

            def mapped(name: str, y: np.ndarray, expert: int = int(expert)) -> np.ndarray:
                bias, scale = wide[name].get("bias"), wide[name].get("scale")
                weight = wide[name]["weight"][expert]
                z: np.ndarray = y @ (weight if name == "down" else weight.T)
                z = z if scale is None else z * scale[expert]
                return z if bias is None else z + bias[expert]

            gate, up = mapped("gate", row), mapped("up", row)
            if config.activation == "clamped":
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
                inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            else:
                inner = gate / (1 + np.exp(-gate)) * up
            out[number] += share * mapped("down", inner)
    return out


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONFIGS)
def test_all_ways_are_the_reference(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch, *, int8: bool
) -> None:
    experts = random_experts(tiny_config(**CONFIGS[name]))
    if int8:
        hold_int8(experts)
    x = np.random.default_rng(1).normal(size=(9, 32)).astype(np.float32)
    monkeypatch.setattr(module, "_one_by_one", WAYS[way])
    expected = reference(experts, x)
    found = np.asarray(run(experts, jnp.asarray(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # In a scan there are the experts of all layers, of which one is meant.
    others = [random_experts(experts.config, seed) for seed in (7, 8)]
    if int8:
        for other in others:
            hold_int8(other)
    states = [nnx.state(each) for each in (others[0], experts, others[1])]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *states)
    scanned = nnx.merge(nnx.graphdef(experts), stacked)
    # It is one number for each expert, not a matrix.
    scanned.router_bias = experts.router_bias
    scanned.layer = jnp.int32(1)
    again = np.asarray(run(scanned, jnp.asarray(x)))
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_alone_has_the_bits_it_has_beside_others(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = random_experts(tiny_config(**PLAIN))
    monkeypatch.setattr(module, "_one_by_one", WAYS[way])
    x = jnp.asarray(np.random.default_rng(2).normal(size=(16, 32)), jnp.bfloat16)
    graph, state = nnx.split(experts)
    half = jax.tree.map(lambda part: part.astype(jnp.bfloat16), state)

    @jax.jit
    def run(rows: jax.Array) -> jax.Array:
        return nnx.merge(graph, half)(rows)

    together = np.asarray(run(x).astype(jnp.float32))
    for count in (1, 2, 5, 8):
        np.testing.assert_array_equal(
            np.asarray(run(x[:count]).astype(jnp.float32)), together[:count]
        )


# As many experts as Qwen3's: sums of so many are added up in another order beside other rows.
@pytest.mark.parametrize("normalized", [False, True])
def test_a_row_is_routed_alone_as_beside_others(*, normalized: bool) -> None:
    config = tiny_config(num_experts=128, experts_per_token=8, normalized_routing=normalized)
    experts = Experts(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    graph, state = nnx.split(experts)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(600, 32)), jnp.bfloat16)
    route = jax.jit(lambda rows: nnx.merge(graph, state)._route(rows))
    chosen, shares = map(np.asarray, route(x))
    assert np.allclose(shares.sum(axis=1), 1) == normalized
    for count in (1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 511, 512, 513):
        some, theirs = map(np.asarray, route(x[:count]))
        np.testing.assert_array_equal(some, chosen[:count])
        np.testing.assert_array_equal(theirs, shares[:count], str(count))
