"""The count by hand against XLA's, and XLA's for a TPU that is not there."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from blockdraft_bench.compiled_cost import compiled_cost, compiled_step_cost
from blockdraft_bench.decoder_cost import step_cost
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.kflat import StepShape
from blockdraft_bench.kflat_modelled import modelled_points
from blockdraft_bench.roofline import PUBLISHED, Roofline
from blockdraft_bench.topology import topology_device
from blockdraft_models.config import DecoderConfig
from blockdraft_models.testing import tiny_config

# XLA also counts norms, softmax, rotation and masked scores, which the count by hand leaves out.
FLOPS_TOLERANCE = 0.10
# And every intermediate result, most of all of attention; weights dominate with one token.
BYTES_TOLERANCE = 0.25
ROOFLINE = Roofline(1e12, 1e11, "measured")
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def wide_config(layers: int = 2) -> DecoderConfig:
    return tiny_config(
        hidden_size=512,
        intermediate_size=1536,
        num_layers=layers,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=2048,
    )


@pytest.mark.parametrize(
    "shape", [StepShape(1, 64, 1), StepShape(1, 128, 16), StepShape(4, 256, 32)], ids=str
)
def test_operations_are_those_xla_counts(shape: StepShape) -> None:
    counted = step_cost(
        wide_config(),
        batch=shape.batch,
        context_tokens=shape.context_tokens,
        tokens=shape.tokens,
        bytes_per_element=4,
    )
    compiled = compiled_step_cost(wide_config(), shape, jnp.float32, jax.devices()[0])
    assert counted.flops == pytest.approx(compiled.flops, rel=FLOPS_TOLERANCE)
    assert counted.bytes < compiled.bytes
    if shape.tokens == 1:
        assert counted.bytes == pytest.approx(compiled.bytes, rel=BYTES_TOLERANCE)
    assert compiled.seconds is None  # The CPU compiler estimates no time.


def test_further_layers_cost_what_the_second_one_does() -> None:
    shape, device = StepShape(2, 40, 8), jax.devices()[0]
    whole = compiled_step_cost(tiny_config(num_layers=5), shape, jnp.float32, device)
    extended = compiled_cost(tiny_config(num_layers=5), shape, jnp.float32, device)
    assert extended.flops == pytest.approx(whole.flops, rel=0.02)
    assert extended.bytes == pytest.approx(whole.bytes, rel=0.02)


def test_without_an_estimate_the_roofline_of_the_counts_is_the_time() -> None:
    shape, device = StepShape(1, 8, 2), jax.devices()[0]
    steps: list[int] = []
    [point] = modelled_points(
        tiny_config(num_layers=1),
        [shape],
        jnp.float32,
        device,
        ROOFLINE,
        on_step=lambda: steps.append(1),
    ).values()
    compiled = compiled_step_cost(tiny_config(num_layers=1), shape, jnp.float32, device)
    assert (point.compiled_flops, point.compiled_bytes) == (compiled.flops, compiled.bytes)
    assert point.seconds == max(compiled.flops / 1e12, compiled.bytes / 1e11)
    assert (point.tokens, point.seconds_quartiles, len(steps)) == (2, None, 1)


@needs_libtpu
@pytest.mark.parametrize("name", ["v5p:2x2x1", "v5e:2x2", "v6e:2x2"])
def test_models_a_tpu(name: str) -> None:
    device, roofline = topology_device(name)
    assert roofline == PUBLISHED[device.device_kind]
    shapes = [StepShape(1, 64, 1), StepShape(1, 64, 16)]
    points = modelled_points(wide_config(1), shapes, jnp.bfloat16, device, roofline)
    for shape in shapes:
        point = points[shape]
        assert point.compiled_flops is not None
        assert point.compiled_bytes is not None
        assert point.seconds > 0
        # The compiler's own time is near what its counts allow this chip.
        bound = roofline.seconds(point.compiled_flops, point.compiled_bytes)
        assert 0.8 * bound < point.seconds < 2 * bound
    last = points[shapes[-1]]
    assert last.compiled_flops == pytest.approx(last.flops, rel=FLOPS_TOLERANCE)


@needs_libtpu
def test_says_which_topology_is_unknown() -> None:
    with pytest.raises(BenchUsageError, match="libtpu has no topology 'v5p:nonsense'"):
        topology_device("v5p:nonsense")


def test_says_that_libtpu_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Looks where nothing is installed.
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "libtpu", raising=False)
    with pytest.raises(BenchUsageError, match="needs libtpu; pip install 'blockdraft"):
        topology_device("v5p:2x2x1")
