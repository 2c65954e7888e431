"""Rooflines, costs counted by hand, and what is said of a K-flat curve; on made-up numbers."""

from dataclasses import asdict

import pytest
from tests.models.tiny import tiny_config

from blockdraft_aot.model_shapes import SHAPES
from blockdraft_aot.roofline import Roofline
from blockdraft_bench.kflat.curve import (
    Curve,
    CurveName,
    StepCost,
    StepShape,
    Timing,
    curve_table,
    curves_of,
    step_cost,
    step_shapes,
    steps_of,
    weight_count,
)
from blockdraft_bench.kflat.measure import engine_config

# 100 operations or 10 bytes a second: with 2-byte weights the knee is at 10 tokens.
ROOFLINE = Roofline(100.0, 10.0, "measured")


def curve(*relative: float, weights: float = 1000.0, kv: float = 0.0) -> Curve:
    """Return steps of 1, 2, 4, ... tokens over `weights` 2-byte weights and `kv` bytes a token."""
    name = CurveName(device="a device", model="a model", batch=1, context_tokens=128)
    steps = {}
    for power, times in enumerate(relative):
        size = 1 << power
        timing = Timing(200.0 * times, (190.0 * times, 210.0 * times))
        steps[size] = timing, StepCost(2.0 * weights * size, 2.0 * weights + kv * size)
    return Curve(name, 2, ROOFLINE, steps_of(name, steps, ROOFLINE))


def test_roofline_by_hand() -> None:
    assert ROOFLINE.seconds(flops=300.0, memory_bytes=20.0) == 3.0
    assert ROOFLINE.seconds(flops=100.0, memory_bytes=20.0) == 2.0
    assert ROOFLINE.compute_bound(200.0, 20.0)
    assert not ROOFLINE.compute_bound(199.0, 20.0)
    assert ROOFLINE.knee_tokens(2) == 10.0
    assert ROOFLINE.knee_tokens(4) == 20.0


def test_cost_by_hand() -> None:
    # Width 32, 4 query and 2 KV heads of 8, MLP 64, 3 layers, 260 tokens of vocabulary.
    config = tiny_config()
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64
    weights = 3 * layer + 32 * 260
    assert weight_count(config) == weights
    cost = step_cost(config, StepShape(2, 10, 6), bytes_per_element=4)
    # Each of 2 sequences: its 3 tokens see 11, 12 and 13 positions.
    pairs = 2 * (11 + 12 + 13)
    assert cost.flops == 2 * 6 * weights + 3 * pairs * 4 * (2 + 2) * 8
    # K and V: 2 heads of 8; 13 positions of each sequence read, 6 in all written.
    assert cost.bytes == 4 * (weights + 3 * 2 * 2 * 8 * (2 * 13 + 6))


@pytest.mark.parametrize(("name", "billions"), [("llama-3.1-8b", 7.50), ("qwen3-4b", 4.02)])
def test_published_shapes_have_the_published_size(name: str, billions: float) -> None:
    # 8.03 billion parameters less the untied embedding's 0.53; 4.02 billion, the head tied.
    assert weight_count(SHAPES[name]) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize(
    ("relative", "kv", "said", "allowed"),
    [
        # At 16 tokens 32,000 operations take 320 s; 2,000 bytes take 200 s.
        ((1.0, 1.0, 1.0, 1.0, 1.7), 0.0, "8; a step of 16 takes 1.70 times", "1.60"),
        # At 2 tokens 3,000 bytes instead of 2,500.
        ((1.0, 1.3), 500.0, "1; a step of 2 takes 1.30 times", "1.20"),
        # What the roofline does not explain is the implementation's.
        ((1.0, 1.4, 1.5), 0.0, "1; a step of 2 takes 1.40 times", "1.00"),
        ((1.0, 1.4, 1.05, 1.2), 0.0, "4; a step of 8 takes 1.20 times", "1.00"),
    ],
)
def test_says_until_where_and_what_the_roofline_explains(
    relative: tuple[float, ...], kv: float, said: str, allowed: str
) -> None:
    text = curve(*relative, kv=kv).explain()
    assert text == f"free up to K = {said} the smallest, where the roofline allows {allowed}"


def test_says_that_everything_was_free() -> None:
    assert curve(1.0, 1.02).explain() == "free up to the largest step, K = 2"


def test_table() -> None:
    fast, slow = curve(1.0, 1.05), curve(1.0, 1.5, 2.0)
    assert curve_table([fast, slow]).splitlines() == [
        "| Device | Model | Batch | Context | K* | Free until | First, ms | 1 | 2 | 4 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| a device | a model | 1 | 128 | 10 | 2 | 2e+05 | 1.00 | 1.05 |  |",
        "| a device | a model | 1 | 128 | 10 | 1 | 2e+05 | 1.00 | 1.50 | 2.00 |",
    ]


def test_a_curve_for_each_batch_and_context() -> None:
    config = tiny_config()
    shapes = step_shapes([1, 2], [10, 20], 4)
    timings = {shape: Timing(float(shape.tokens), (0.0, 9.0)) for shape in shapes}
    curves = curves_of(
        config,
        timings,
        device="a device",
        bytes_per_weight=4,
        roofline=ROOFLINE,
    )
    found = [(c.name.batch, c.name.context_tokens, [s["tokens"] for s in c.steps]) for c in curves]
    one, two = [1, 2, 4], [2, 4]
    assert found == [(1, 10, one), (1, 20, one), (2, 10, two), (2, 20, two)]
    assert [step["relative_to_one"] for step in curves[2].steps] == [1.0, 2.0]
    # What a step needs is counted by its shape.
    cost = step_cost(config, StepShape(2, 20, 4), bytes_per_element=4)
    last = curves[3].steps[-1]
    assert (last["flops"], last["bytes"]) == (cost.flops, cost.bytes)
    assert {name: last[name] for name in asdict(curves[3].name)} == asdict(curves[3].name)


def test_the_cache_holds_every_shape_and_no_more() -> None:
    config = engine_config([StepShape(1, 100, 64), StepShape(4, 100, 16)], "float32")
    # 164 tokens need 11 pages of 16; four times 104 need 7 each.
    assert config.num_pages == 28
    assert config.scheduler.max_context_tokens == 164
    assert (config.scheduler.max_sequences, config.scheduler.max_step_tokens) == (4, 64)
