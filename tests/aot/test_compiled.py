"""What is read of a compiled program, where it can be counted by hand."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from blockdraft_aot.compiled import Counts, bytes_on_one_device, compile_and_read
from blockdraft_models.decoder.layer import LAYER_SCOPE
from blockdraft_models.decoder.sharding import model_mesh


def test_a_matrix_product_is_counted() -> None:
    def product(
        left: Float[Array, "rows inner"], right: Float[Array, "inner columns"]
    ) -> Float[Array, "rows columns"]:
        return left @ right

    left, right = jnp.zeros((64, 128)), jnp.zeros((128, 256))
    compiled = compile_and_read(jax.jit(product).lower(left, right))
    assert compiled.counts.flops == pytest.approx(2 * 64 * 128 * 256, rel=0.01)
    elements = 64 * 128 + 128 * 256 + 64 * 256
    assert compiled.counts.bytes == pytest.approx(4 * elements, rel=0.01)
    assert compiled.argument_bytes == 4 * (64 * 128 + 128 * 256)
    assert compiled.result_bytes == 4 * 64 * 256
    assert (compiled.collectives, compiled.kernels, compiled.layer_sums) == (0, 0, 0)
    assert compiled.compile_seconds > 0


def test_sums_of_layers_are_counted() -> None:
    def sums(x: Float[Array, "rows width"]) -> Float[Array, ""]:
        outside = jnp.cumsum(x, axis=1)
        with jax.named_scope(LAYER_SCOPE):
            whole = jnp.sum(x.astype(jnp.int32))
            return jnp.sum(outside @ outside.T) + whole.astype(jnp.float32)

    assert compile_and_read(jax.jit(sums).lower(jnp.zeros((64, 64)))).layer_sums == 2


def test_donated_arguments_are_no_further_results() -> None:
    @jax.jit
    def shift(kept: Float[Array, " n"]) -> Float[Array, " n"]:
        return kept + 1.0

    donating = jax.jit(shift, donate_argnums=0)
    assert compile_and_read(donating.lower(jnp.zeros(1000))).result_bytes == 0
    assert compile_and_read(shift.lower(jnp.zeros(1000))).result_bytes == 4000


def test_counts_of_layers_add_up() -> None:
    rest, one_layer = Counts(10.0, 100.0, 1.0), Counts(13.0, 150.0, 1.5)
    layer = one_layer.plus(rest, times=-1)
    assert rest.plus(layer, times=4) == Counts(22.0, 300.0, 3.0)


def test_bytes_of_a_device_are_its_share() -> None:
    mesh = model_mesh(jax.devices()[:1])
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model"))
    described = [
        jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=place),
        jax.ShapeDtypeStruct((8,), jnp.bfloat16, sharding=place),
    ]
    assert bytes_on_one_device(described) == 8 * 3 * 4 + 8 * 2
