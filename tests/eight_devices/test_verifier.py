"""A target divided over devices decodes what it decodes on one."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.verifier.exactness.contract import Contract
from tests.verifier.support import UnhurriedRunner, decode, engine_over

from blockdraft_models.decoder.experts import Experts
from blockdraft_models.decoder.feature_projection import FeatureProjection
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import (
    MODEL_AXIS,
    Placement,
    model_mesh,
    sum_over_devices,
)
from blockdraft_models.kept_programs import KeptPrograms
from blockdraft_models.sampling_options import Sampling
from blockdraft_models.weights.adapters import load_adapters
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_models.words import to_words
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.cache import CacheLayout, allocate_cache
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm
from blockdraft_verifier.device.packing import pack
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.device.states import StateLayout
from blockdraft_verifier.device.step import StepOutputs, TargetStep
from blockdraft_verifier.device.token_limits import LimitsPacker
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

TARGETS = Path(__file__).parents[1] / "golden" / "targets"
BUCKET = Bucket(2, 8, 8)
PAGE_SIZE, NUM_PAGES, MAX_PAGES = 4, 16, 8


def placed_on(devices: int) -> Placement:
    return Placement(model_mesh(jax.devices()[:devices]))


class Stepping:
    """Runs the compiled step over sequences and keeps the cache."""

    def __init__(
        self, decoder: Decoder, mesh: Mesh | None, projection: FeatureProjection | None = None
    ) -> None:
        graph, self.weights = nnx.split(decoder)
        self.vocab_size = decoder.config.vocab_size
        stacked, self.has_adapters = (
            isinstance(decoder, ScannedDecoder),
            bool(decoder.adapter_ranks),
        )
        form: Any = {"mesh": mesh, "stacked": stacked}
        states = StateLayout.of(decoder.config, BUCKET.rows, jnp.float32, **form)
        sizes = NUM_PAGES, PAGE_SIZE
        self.layout = CacheLayout.of(decoder.config, *sizes, jnp.float32, states=states, **form)
        fingerprint = "" if projection is None else projection.fingerprint()
        self.features = FeatureForm((2, 0), projection, fingerprint).placed(mesh)
        step = TargetStep(graph, self.layout, MAX_PAGES, self.features, 4)
        self.compiled: Any = step.lower(self.weights, BUCKET).compile()
        self.cache = allocate_cache(self.layout)

    def run(self, rows: list[Row]) -> StepOutputs:
        sizes: Any = {"page_size": PAGE_SIZE, "num_pages": NUM_PAGES, "max_pages": MAX_PAGES}
        limits = LimitsPacker(self.vocab_size).pack(rows, BUCKET)
        words = to_words(
            pack(
                rows,
                BUCKET,
                **sizes,
                states=self.layout.states,
                has_adapters=self.has_adapters,
            )
        )
        inputs = jax.device_put((words, limits), self.layout.replicated)
        outputs, self.cache = self.compiled(
            jax.tree.leaves(self.weights), self.features.projection, self.cache, *inputs
        )
        on_host: StepOutputs = jax.device_get(outputs)
        return on_host


@pytest.mark.usefixtures("jax_keeps_nothing")
def test_steps_that_were_compiled_before_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mesh = tiny_config("qwen3", num_layers=2), placed_on(2).mesh
    write_hf_checkpoint(random_decoder(config), tmp_path / "target")
    decoder, _ = load_decoder(tmp_path / "target", dtype=jnp.float32, placement=placed_on(2))
    settings = EngineSettings(
        num_pages=NUM_PAGES, page_size=PAGE_SIZE, scheduler=SchedulerSettings(1, 2, 16)
    )
    kept = KeptPrograms(tmp_path / "programs", "blockdraft_verifier")
    ModelRunner(decoder, settings, mesh, kept_programs=kept).warm_up(NO_FEATURES, 2)
    monkeypatch.setattr(TargetStep, "lower", lambda *step: pytest.fail(f"{step} was lowered"))
    assert ModelRunner(decoder, settings, mesh, kept_programs=kept).warm_up(NO_FEATURES, 2).seconds


def steps_of_two_sequences(vocab_size: int) -> list[list[Row]]:
    """Return chunks of prompts, then drafts, greedy and sampled."""
    rng = np.random.default_rng(0)
    sampled = Sampling(temperature=0.7, top_p=0.9, seed=5)
    prompts = [tuple(rng.integers(0, vocab_size, 16).tolist()) for _ in range(2)]
    first, second = (
        TokenSequence(
            index,
            GenerationRequest("s", prompts[index], sampling=sampling, adapter=index + 1),
            0.0,
        )
        for index, sampling in enumerate((Sampling(), sampled))
    )
    first.pages, second.pages = [9, 3, 0, 7], [2, 8, 15, 1]
    second.state_slot = 1
    return [
        [Row(first, 0, prompts[0][:8], 0)],
        [Row(first, 8, prompts[0][8:11], 2), Row(second, 0, prompts[1][:5], 0)],
        [Row(second, 5, prompts[1][5:9], 3), Row(first, 11, prompts[0][11:12], 0)],
    ]


# Key heads: one or more to each device, one for several devices, not divisible at all.
LAYOUTS: dict[str, tuple[int, dict[str, Any], bool, WeightFormat]] = {
    "as many key heads as devices": (8, {"num_heads": 8, "num_kv_heads": 8}, False, "float"),
    "two key heads each": (2, {"num_heads": 8, "num_kv_heads": 4}, True, "float"),
    "shared key heads": (8, {"num_heads": 16, "num_kv_heads": 2}, True, "float"),
    "whole heads": (8, {"num_heads": 6, "num_kv_heads": 3}, False, "float"),
    "int8 weights": (4, {"num_heads": 8, "num_kv_heads": 4}, True, "int8"),
}


# Features are right where projected ones are; what is given without a projection is looked at once.
@pytest.mark.parametrize(
    ("layout", "raw"), [*((layout, False) for layout in LAYOUTS), ("two key heads each", True)]
)
def test_the_same_tokens_as_on_one_device(layout: str, raw: bool, tmp_path: Path) -> None:
    devices, heads, scanned, weights = LAYOUTS[layout]
    config = tiny_config("qwen3", vocab_size=264, **heads)
    write_hf_checkpoint(random_decoder(config), tmp_path)
    alone, _ = load_decoder(tmp_path, dtype=jnp.float32, weights=weights)
    placement = placed_on(devices)
    loaded, _ = load_decoder(tmp_path, dtype=jnp.float32, weights=weights, placement=placement)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((config.hidden_size, 2 * config.hidden_size)).astype(np.float32)
    scale = rng.standard_normal(config.hidden_size).astype(np.float32)
    on_several = ScannedDecoder(loaded, placement) if scanned else loaded
    projection = None if raw else FeatureProjection(weight, scale, 1e-6)
    divided = Stepping(on_several, placement.mesh, projection)
    assert_same_steps(divided, Stepping(alone, None, projection), config.vocab_size)


# Of four experts, or six, each device holds the half.
@pytest.mark.parametrize(
    ("name", "scanned"),
    [
        *(("gpt-oss", True), ("gpt-oss int8", True), ("qwen3-moe", False), ("smollm3", True)),
        *(("olmo3", True), ("granite", False), ("gemma4", False), ("gemma4", True)),
        *(("gemma4-moe", False), ("gemma4-moe", True)),
        *(("gemma4-shared", False), ("gemma4-shared", True)),
        *(("qwen3-next", True), ("qwen3-5", False), ("qwen3-5", True), ("qwen3-5-moe", False)),
        *(("deepseek-v3", False), ("deepseek-v3", True), ("glm4-moe-lite", True)),
        *(("qwen3 adapters", True), ("phi3 adapters", False), ("qwen3-5 adapters", True)),
    ],
)
def test_families_divided_over_devices_say_the_same(name: str, *, scanned: bool) -> None:
    folder, _, form = name.partition(" ")
    weights: WeightFormat = "int8" if form == "int8" else "float"
    alone, _ = load_decoder(TARGETS / folder, dtype=jnp.float32, weights=weights)
    placement = placed_on(2)
    loaded, _ = load_decoder(
        TARGETS / folder, dtype=jnp.float32, weights=weights, placement=placement
    )
    if form == "adapters":
        load_adapters(alone, TARGETS.parent / "adapters" / folder)
        load_adapters(loaded, TARGETS.parent / "adapters" / folder, placement)
    for _, part in nnx.iter_modules(loaded.layers[0]):
        if not isinstance(part, Experts):
            continue
        of_first = part.down.weight[...].addressable_shards[0].data
        assert len(of_first) == alone.config.num_experts // 2
    on_several = ScannedDecoder(loaded, placement) if scanned else loaded
    divided = Stepping(on_several, placement.mesh)
    assert_same_steps(divided, Stepping(alone, None), alone.config.vocab_size)


def test_key_heads_of_each_width_are_divided_by_themselves() -> None:
    decoder, _ = load_decoder(TARGETS / "gemma4", dtype=jnp.float32, placement=placed_on(2))
    shapes = []
    for layer in decoder.layers[:2]:
        assert layer.attention.key is not None
        shapes.append(layer.attention.key.weight[...].addressable_shards[0].data.shape)
    # One of two heads of 8, and all of the one of 16.
    assert shapes == [(8, 32), (16, 32)]


def assert_same_steps(divided: Stepping, reference: Stepping, vocab_size: int) -> None:
    for rows in steps_of_two_sequences(vocab_size):
        outputs, expected = divided.run(rows), reference.run(rows)
        count = len(rows)
        np.testing.assert_array_equal(outputs.accepted[:count], expected.accepted[:count])
        np.testing.assert_array_equal(outputs.bonus[:count], expected.bonus[:count])
        final = sum(row.known_count for row in rows) + int(expected.accepted[:count].sum())
        np.testing.assert_allclose(
            np.concatenate(outputs.features)[:final].astype(np.float32),
            np.concatenate(expected.features)[:final].astype(np.float32),
            rtol=0.02,  # of bfloat16
            atol=0.02,
        )


def test_every_weight_is_divided_over_the_devices(tmp_path: Path) -> None:
    config = tiny_config("llama", vocab_size=264, num_heads=8, num_kv_heads=8)
    write_hf_checkpoint(random_decoder(config), tmp_path)
    placement = placed_on(8)
    decoder, _ = load_decoder(tmp_path, dtype=jnp.float32, placement=placement)
    whole = sum(weight.nbytes for weight in jax.tree.leaves(nnx.state(decoder)))
    scanned = ScannedDecoder(decoder, placement)
    weights = jax.tree.leaves(nnx.state(scanned))
    on_first = sum(weight.addressable_shards[0].data.nbytes for weight in weights)
    norms = sum(weight.nbytes for weight in weights if weight.sharding.is_fully_replicated)
    assert norms < 0.05 * whole
    np.testing.assert_allclose(on_first - norms, (whole - norms) / 8)


@pytest.mark.parametrize("width", [64, 6])
def test_what_devices_computed_is_added_in_their_order(width: int) -> None:
    parts = np.random.default_rng(0).standard_normal((4, 5, width)).astype(np.float32)
    by_device = PartitionSpec(MODEL_AXIS)
    total = jax.shard_map(
        lambda part: sum_over_devices(part[0], jnp.float32),
        mesh=placed_on(4).mesh,
        in_specs=by_device,
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    expected = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    np.testing.assert_array_equal(jax.jit(total)(parts), expected)


# Two devices divide the heads of a state, four do not.
@pytest.mark.parametrize(("name", "devices"), [("qwen3-moe", 2), ("qwen3-5", 2), ("qwen3-5", 4)])
def test_bits_depend_on_no_other_position(name: str, devices: int) -> None:
    placement = placed_on(devices)
    decoder, _ = load_decoder(TARGETS / name, dtype=jnp.float32, placement=placement)
    scheduler = SchedulerSettings(max_sequences=2, max_step_tokens=8, max_context_tokens=64)
    settings = EngineSettings(page_size=8, num_pages=40, scheduler=scheduler)
    runner = ModelRunner(decoder, settings, placement.mesh)
    runner.compile(NO_FEATURES, 4)
    text = np.random.default_rng(0).integers(0, decoder.config.vocab_size, 48).tolist()
    Contract(runner, text).check(0)


def test_canvases_are_denoised_alike() -> None:
    continued = np.load(TARGETS.parent / "diffusion-gemma.npz")["continued"].tolist()
    placement = placed_on(2)
    decoder, _ = load_decoder(TARGETS / "diffusion-gemma", dtype=jnp.float32, placement=placement)
    scheduler = SchedulerSettings(max_sequences=1, max_step_tokens=16, max_context_tokens=128)
    settings = EngineSettings(page_size=4, num_pages=32, scheduler=scheduler)
    engine = engine_over(UnhurriedRunner(decoder, settings, placement.mesh), settings)
    request = GenerationRequest("r", tuple(continued[:7]), max_output_tokens=100)
    assert decode(engine, [request])[0].tokens == continued[7:]
