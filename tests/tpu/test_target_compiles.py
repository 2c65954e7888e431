"""Published targets on real slices: every kind of step compiles, by the kernel, and fits."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.models.tiny import LIKE_GEMMA4, LIKE_GEMMA4_SHARED, LIKE_QWEN3_NEXT, tiny_config

from blockdraft_aot.compiled import compile_and_read
from blockdraft_aot.model_shapes import SHAPES, Pair, drafter_shape
from blockdraft_aot.programs import TargetPrograms
from blockdraft_aot.settings import ServingLimits
from blockdraft_aot.survey import DTYPE, Memory, pages_that_fit
from blockdraft_aot.topology import Topology, describe_topology
from blockdraft_models.decoder.config import DecoderConfig, DeltaSizes
from blockdraft_models.decoder.rope_scaling import ProportionalScaling
from blockdraft_models.diffusion import MaskDiffusion, NoiseDiffusion
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.sizes import page_size_on_tpu
from blockdraft_verifier.device.states import lower_copies
from blockdraft_verifier.device.token_limits import no_limits

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

TARGETS = Path(__file__).parents[1] / "golden" / "targets"
LIMITS = ServingLimits(
    max_sequences=16, max_step_tokens=1024, max_context_tokens=4096, page_size=32
)
NEEDED_PAGES = 4096 // 32
# Of a quarter of heads that are 512 wide.
WIDE_SCALING = ProportionalScaling(64)
# Half of a host: the other half is the drafter's. One chip serves plainly.
SLICES = [
    ("llama-3.1-8b", "dflash", "v5p:1x2x1"),
    pytest.param("llama-3.1-8b", "eagle3", "v5p:1x2x1", marks=pytest.mark.slow),
    pytest.param("qwen3-4b", "dflash", "v5p:1x2x1", marks=pytest.mark.slow),
    ("qwen3-4b", "dflash", "v6e:2x2"),
    pytest.param("qwen3-8b", "dflash", "v5p:1x2x1", marks=pytest.mark.slow),
    pytest.param("qwen3-8b", "dflash", "v6e:2x2", marks=pytest.mark.slow),
    ("llama-3.2-1b", "none", "v5e:1x1"),
]


@lru_cache
def topology(name: str) -> Topology:
    return describe_topology(name)


def chosen(programs: TargetPrograms, *, ends_of_each: bool) -> list[Bucket]:
    """Return the smallest and the largest step of each kind, or of all."""
    by_kind = [
        [bucket for bucket in programs.buckets if programs.kind(bucket) == kind]
        for kind in ("verify", "prefill")
    ]
    ends = [end for each in by_kind for end in (each[0], each[-1])]
    return ends if ends_of_each else [ends[0], ends[-1]]


def kernel_count(config: DecoderConfig) -> int:
    """Return how many kernels a step has: in its layer, one for each use of it, and in the head."""
    norms, products, attention, last_norm_and_head = 2 + 2 * config.qk_norm, 7, 1, 2
    return norms + products + attention + last_norm_and_head


# XLA compiles the largest for minutes, and beside other work for several times as long.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("target", "drafter", "name"), SLICES)
def test_small_and_large_steps(target: str, drafter: str, name: str) -> None:
    chips = topology(name)
    config = SHAPES[target]
    pair = Pair(config, drafter_shape(drafter, config, 16))
    programs = TargetPrograms.on(chips.mesh, pair, LIMITS, 2 * NEEDED_PAGES, DTYPE)
    assert programs.layout.attention == "library"
    # Steps differ in shape only; those between are left to `blockdraft compile`.
    steps = chosen(programs, ends_of_each=(target, drafter, name) == SLICES[0])
    compiled = [compile_and_read(programs.lower(bucket)) for bucket in steps]
    for program in compiled:
        # In the one layer that is compiled all products, norms and attention are kernels,
        assert program.kernels == kernel_count(config)
        # so that no sum has an order of XLA's,
        assert program.layer_sums == 0
        # and its chips meet twice after attention and twice after the MLP: to add up, and to share.
        assert program.layer_collectives == (0 if chips.mesh.size == 1 else 4)
    memory = Memory(int(0.9 * chips.memory_bytes), programs.weight_bytes(), 0)
    memory = memory.with_programs(compiled)
    # Room for all sequences at full length, more or less.
    pages = pages_that_fit(memory, programs.layout.page_bytes, NEEDED_PAGES)
    assert pages > 8 * NEEDED_PAGES
    caches = 2 * NEEDED_PAGES * programs.layout.page_bytes
    # They lie on the device for all steps of this shape.
    limits = sum(array.nbytes for array in no_limits(steps[-1], config.vocab_size))
    inputs = compiled[-1].argument_bytes - memory.weights - caches - limits
    assert 0 <= inputs < 1e6


def test_key_heads_that_fill_no_tile_attend_by_the_kernel_too() -> None:
    """Of such a cache every step would otherwise make a copy, several times its size."""
    heads: dict[str, Any] = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "hidden_size": 576}
    config = tiny_config(num_layers=4, vocab_size=512, intermediate_size=512, **heads)
    # Two chips, over which three heads cannot be divided.
    mesh = topology("v5p:1x2x1").mesh
    pages = 8 * NEEDED_PAGES
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, pages, DTYPE)
    found = compile_and_read(programs.lower(programs.buckets[0]))
    assert found.kernels == kernel_count(config)
    assert found.layer_sums == 0
    # Four heads of 128, keys and values, in bfloat16.
    assert programs.layout.page_bytes == 4 * 32 * 2 * 4 * 128 * 2
    assert found.temporary_bytes < 0.1 * pages * programs.layout.page_bytes


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("v5e:1x1", {"num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "attention_sinks": True}),
        ("v5p:1x2x1", {"num_heads": 8, "num_kv_heads": 4, "head_dim": 256, "hidden_size": 1024}),
        ("v6e:2x2", {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "attention_sinks": True}),
    ],
    ids=["gpt-oss", "Gemma 3", "a shared head"],
)
def test_sinks_and_wide_heads_attend_by_a_kernel_too(name: str, heads: dict[str, Any]) -> None:
    layers: dict[str, Any] = {"num_layers": 4, "windows": (128, 0, 128, 0), "vocab_size": 512}
    config = tiny_config(**{"hidden_size": 512, "intermediate_size": 512, **layers, **heads})
    mesh = topology(name).mesh
    pages = 16 * NEEDED_PAGES
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, pages, DTYPE)
    assert programs.layout.attention == "tiles"
    # Keys and values in bfloat16, without any padding.
    kv_heads = max(1, config.num_kv_heads // mesh.size)
    assert programs.layout.page_bytes == 4 * 32 * 2 * kv_heads * config.head_dim * 2
    for bucket in (programs.buckets[0], programs.buckets[-1]):
        found = compile_and_read(programs.lower(bucket))
        # Attention is one kernel for layers with a window and without.
        assert found.kernels == kernel_count(config)
        assert found.layer_sums == 0
    assert found.temporary_bytes < 0.2 * pages * programs.layout.page_bytes


@pytest.mark.parametrize(
    ("name", "shape", "kernels"),
    [
        # Of each layer seven norms, attention, and products: seven, or six where values are keys.
        ("v6e:2x2", {**LIKE_GEMMA4, "windows": (128, 128, 0) * 2}, 2 * 15 + 14),
        # Two products and a norm more; without keys two products and two norms less. The further
        # embeddings have a product and a norm.
        ("v5e:1x1", {**LIKE_GEMMA4_SHARED, "windows": (128, 0) * 4}, 2 * 18 + 2 * 14 + 2),
    ],
    ids=["dense", "shared keys"],
)
def test_layers_of_several_forms_are_kernels_too(
    name: str, shape: dict[str, Any], kernels: int
) -> None:
    layers = len(shape["windows"])
    shape = {**shape, "num_layers": layers, "vocab_size": 512, "rope_scaling": WIDE_SCALING}
    if "shared_kv_layers" in shape:
        shape |= {"shared_kv_layers": layers // 2, "layer_embedding_size": 256}
    heads = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 256, "global_head_dim": 512}
    config = tiny_config(**{**shape, **heads, "hidden_size": 512, "intermediate_size": 512})
    pages = 16 * NEEDED_PAGES
    programs = TargetPrograms.on(topology(name).mesh, Pair(config, None), LIMITS, pages, DTYPE)
    for bucket in (programs.buckets[0], programs.buckets[-1]):
        program = compile_and_read(programs.lower(bucket))
        # One period of each form is compiled, and the last norm and the head.
        assert program.kernels == kernels + 2
        assert program.layer_sums == 0
    assert program.temporary_bytes < 0.1 * pages * programs.layout.page_bytes


def test_layers_with_a_state_compile() -> None:
    """Their recurrence is XLA's, in a loop whose body is the same in all steps."""
    heads: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 256, "rotary_dim": 64}
    shape = {**LIKE_QWEN3_NEXT, **heads, "hidden_size": 512, "intermediate_size": 512}
    delta, recurrent = DeltaSizes(8, 16, 128, 128, 4), (True, True, True, False) * 2
    shape |= {"delta": delta, "recurrent": recurrent, "num_layers": 8, "vocab_size": 512}
    config = tiny_config(**{**shape, "num_experts": 8, "shared_expert_size": 512})
    programs = TargetPrograms.on(topology("v6e:2x2").mesh, Pair(config, None), LIMITS, 512, DTYPE)
    states = programs.layout.states
    assert states is not None
    assert states.divided
    sums = set()
    for bucket in (programs.buckets[0], programs.buckets[-1]):
        program = compile_and_read(programs.lower(bucket))
        # Seven products and a norm instead of five, two norms and attention. Of each layer two
        # norms more, a router, its experts and the shared one.
        assert program.kernels == 4 * (8 + 2 + 1 + 3 + 3) + 2
        sums.add(program.layer_sums)
        # Nothing is copied that holds the states of all sequences.
        assert program.temporary_bytes < states.bytes
    assert len(sums) == 1
    lower_copies(states).compile()


@pytest.mark.parametrize(("name", "sinks"), [("v5p:1x2x1", False), ("v6e:2x2", True)])
def test_the_largest_page_table_fits_scalar_memory(name: str, sinks: bool) -> None:
    """With pages of 32 tokens it would take twice as much, which the compiler refuses."""
    sizes: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 128, "hidden_size": 512}
    config = tiny_config(**sizes, intermediate_size=512, vocab_size=512, attention_sinks=sinks)
    sequences, tokens = 64, 131_072
    size = page_size_on_tpu(32, sequences, tokens)
    limits = replace(LIMITS, max_sequences=sequences, max_context_tokens=tokens, page_size=size)
    mesh, pages = topology(name).mesh, 2 * tokens // size
    programs = TargetPrograms.on(mesh, Pair(config, None), limits, pages, DTYPE)
    assert programs.layout.attention == ("tiles" if sinks else "library")
    bucket = next(bucket for bucket in programs.buckets if bucket.rows == sequences)
    assert sequences * tokens // size * 4 == 512 << 10
    programs.lower(bucket).compile()


def test_int8_weights_are_read_as_such() -> None:
    chips = topology("v5p:1x2x1")
    config = SHAPES["llama-3.1-8b"]
    float_pair = Pair(config, None)
    wide, int8 = (
        TargetPrograms.on(chips.mesh, pair, LIMITS, NEEDED_PAGES, DTYPE)
        for pair in (float_pair, replace(float_pair, weights="int8"))
    )
    saved = wide.weight_bytes() - int8.weight_bytes()
    # The embedding stays in bfloat16.
    rounded = wide.weight_bytes() - 2 * config.vocab_size * config.hidden_size // 2
    assert saved == pytest.approx(rounded / 2, rel=0.01)
    bucket = Bucket(16, 16, 16)
    before, after = (compile_and_read(each.lower(bucket)) for each in (wide, int8))
    assert after.kernels == kernel_count(config)
    assert after.layer_sums == 0
    assert after.layer_collectives == 4
    # No matrix is copied in bfloat16, not even the smallest.
    smallest = config.num_kv_heads * config.head_dim * config.hidden_size // 2 * 2
    assert after.temporary_bytes < before.temporary_bytes + smallest / 2
    # The layers' body is counted once: it reads half the bytes of one layer's matrices.
    assert before.counts.bytes - after.counts.bytes > 0.9 * saved / config.num_layers


# Gemma 4's experts are 704 wide, gpt-oss 2,880; a latent vector and what is rotated 576.
@pytest.mark.parametrize(
    ("name", "layers"), [("gemma-4-26b-a4b", 6), ("gpt-oss-20b", 4), ("moonlight-16b-a3b", 4)]
)
def test_weights_that_fill_no_whole_lanes_are_not_copied(name: str, layers: int) -> None:
    config = SHAPES[name].shortened(layers)
    mesh = topology("v6e:2x2").mesh
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, NEEDED_PAGES, DTYPE)
    found = compile_and_read(programs.lower(programs.buckets[0]))
    assert found.layer_sums == 0
    assert found.temporary_bytes < 0.05 * programs.weight_bytes()


def test_a_checkpoint_with_narrow_latent_heads_and_groups_of_experts_compiles() -> None:
    config = load_checkpoint_config(TARGETS / "deepseek-v3").config
    mesh, limits = topology("v6e:2x2").mesh, replace(LIMITS, max_context_tokens=256)
    programs = TargetPrograms.on(mesh, Pair(config, None), limits, NEEDED_PAGES, DTYPE)
    assert programs.layout.attention == "tiles"
    compiled = compile_and_read(programs.lower(programs.buckets[0]))
    # Routers, experts and maps of heads, too.
    assert compiled.layer_sums == 0


def test_steps_that_denoise_compile() -> None:
    # Of few tokens: what samples them takes longest to compile, and is that of other targets.
    few: dict[str, Any] = {"vocab_size": 4096, "bos_token_id": None, "eos_token_ids": ()}
    masks = MaskDiffusion(32, 8, 1, 0.9, shifted=True)
    config = replace(SHAPES["fast-dllm-v2-7b"].shortened(2), diffusion=masks, **few)
    mesh = topology("v6e:2x2").mesh
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, NEEDED_PAGES, DTYPE)
    # JAX's kernel is causal.
    assert programs.layout.attention == "tiles"
    assert programs.buckets[0].tokens >= config.canvas_grain
    found = compile_and_read(programs.lower(programs.buckets[0]))
    assert found.kernels == kernel_count(config)
    assert found.layer_sums == 0


@pytest.mark.slow
def test_steps_that_denoise_noise_compile() -> None:
    config = SHAPES["diffusiongemma-26b-a4b"].shortened(6)
    noise = NoiseDiffusion(256, 4096)
    config = replace(config, vocab_size=4096, bos_token_id=None, eos_token_ids=(), diffusion=noise)
    mesh = topology("v6e:2x4").mesh
    programs = TargetPrograms.on(mesh, Pair(config, None), LIMITS, NEEDED_PAGES, DTYPE)
    [bucket] = [b for b in programs.buckets if (b.tokens, b.choices) == (256, 256)]
    found = compile_and_read(programs.lower(bucket))
    assert found.layer_sums == 0
    # No weights are copied.
    assert found.temporary_bytes < 0.5 * programs.weight_bytes()


@pytest.mark.parametrize("weights", ["float", "int8"])
def test_experts_are_kernels_too(weights: Literal["float", "int8"]) -> None:
    chips = topology("v6e:2x2")
    config = SHAPES["qwen3-30b-a3b"].shortened(4)
    pair = Pair(config, None, weights)
    programs = TargetPrograms.on(chips.mesh, pair, LIMITS, NEEDED_PAGES, DTYPE)
    for bucket in (programs.buckets[0], programs.buckets[-1]):
        found = compile_and_read(programs.lower(bucket))
        # Instead of a gate, an up and a down projection; and there is a router.
        assert found.kernels == kernel_count(config) + 1
        assert found.layer_sums == 0
        # No matrices of experts are copied.
        assert found.temporary_bytes < 0.5 * programs.weight_bytes()
