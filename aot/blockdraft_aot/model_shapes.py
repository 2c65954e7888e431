"""The pair that is compiled, from shapes alone: published ones, or those of a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from blockdraft_aot.settings import AotError
from blockdraft_drafter.compiled.definition import DraftConfig
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.sources import method_of, published_method
from blockdraft_models.decoder.config import DecoderConfig, DeltaSizes, LatentSizes
from blockdraft_models.decoder.rope_scaling import (
    LinearScaling,
    ProportionalScaling,
    RopeScaling,
    YarnScaling,
)
from blockdraft_models.diffusion import MaskDiffusion, NoiseDiffusion
from blockdraft_models.families.table import family_of_model_type
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_models.weights.quantization import WeightFormat
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_verifier.device.feature_form import NO_FEATURES, FeatureForm, projection_sharding

NO_DRAFTER = "none"
# Of the published drafters (z-lab DFlash; EAGLE-3 heads score 32,000 tokens).
PUBLISHED_DRAFT_LAYERS = 5
PUBLISHED_FEATURES = 5
PUBLISHED_EAGLE3_VOCABULARY = 32000

_LLAMA_3_1 = DecoderConfig(
    name="llama-3.1-8b",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    tie_word_embeddings=False,
    attention_bias=False,
    qk_norm=False,
    max_position_embeddings=131072,
    bos_token_id=128000,
    eos_token_ids=(128001, 128008, 128009),
)
_LLAMA_3_2 = replace(
    _LLAMA_3_1, rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192), tie_word_embeddings=True
)
_QWEN3 = replace(
    _LLAMA_3_1,
    vocab_size=151936,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    rope_scaling=None,
    qk_norm=True,
    max_position_embeddings=40960,
    bos_token_id=None,
    eos_token_ids=(151645, 151643),
)
_QWEN2 = replace(
    _QWEN3,
    family="qwen2",
    qk_norm=False,
    attention_bias=True,
    output_bias=False,
    vocab_size=152064,
    num_kv_heads=4,
    max_position_embeddings=32768,
)
_QWEN3_MOE = replace(
    _QWEN3,
    family="qwen3_moe",
    num_kv_heads=4,
    num_experts=128,
    experts_per_token=8,
    max_position_embeddings=262144,
)
_PHI4 = replace(
    _LLAMA_3_1,
    family="phi3",
    vocab_size=100352,
    num_heads=40,
    num_kv_heads=10,
    rope_theta=250000.0,
    rope_scaling=None,
    max_position_embeddings=16384,
    bos_token_id=100257,
    eos_token_ids=(100265,),
)
_SMALL_QWEN3 = replace(_QWEN3, tie_word_embeddings=True)


SHAPES = {
    name: replace(
        family,
        name=name,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        head_dim=head_dim,
    )
    for name, family, hidden, inner, layers, heads, head_dim in (
        ("llama-3.2-1b", _LLAMA_3_2, 2048, 8192, 16, 32, 64),
        ("llama-3.2-3b", _LLAMA_3_2, 3072, 8192, 28, 24, 128),
        ("llama-3.1-8b", _LLAMA_3_1, 4096, 14336, 32, 32, 128),
        ("qwen3-0.6b", _SMALL_QWEN3, 1024, 3072, 28, 16, 128),
        ("qwen3-1.7b", _SMALL_QWEN3, 2048, 6144, 28, 16, 128),
        ("qwen3-4b", _SMALL_QWEN3, 2560, 9728, 36, 32, 128),
        ("qwen3-8b", _QWEN3, 4096, 12288, 36, 32, 128),
        ("qwen3-14b", _QWEN3, 5120, 17408, 40, 40, 128),
        ("qwen3-32b", _QWEN3, 5120, 25600, 64, 64, 128),
        ("qwen2.5-7b", _QWEN2, 3584, 18944, 28, 28, 128),
        ("phi-4", _PHI4, 5120, 17920, 40, 40, 128),
        ("qwen3-30b-a3b", _QWEN3_MOE, 2048, 768, 48, 32, 128),
    )
}
SHAPES["gemma-3-12b"] = replace(
    _LLAMA_3_1,
    name="gemma-3-12b",
    family="gemma3_text",
    vocab_size=262208,
    hidden_size=3840,
    intermediate_size=15360,
    num_layers=48,
    num_heads=16,
    head_dim=256,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    rope_scaling=LinearScaling(8.0),
    local_rope_theta=10000.0,
    windows=(1024, 1024, 1024, 1024, 1024, 0) * 8,
    tie_word_embeddings=True,
    qk_norm=True,
    norm_offset=1.0,
    output_norms=True,
    embedding_scale=3840**0.5,
    activation="gelu_tanh",
    bos_token_id=2,
    eos_token_ids=(1, 106),
)
SHAPES["gemma-4-31b"] = replace(
    SHAPES["gemma-3-12b"],
    name="gemma-4-31b",
    family="gemma4_text",
    vocab_size=262144,
    hidden_size=5376,
    intermediate_size=21504,
    num_layers=60,
    num_heads=32,
    num_kv_heads=16,
    global_head_dim=512,
    global_kv_heads=4,
    values_are_keys=True,
    rope_scaling=ProportionalScaling(64),
    windows=(1024, 1024, 1024, 1024, 1024, 0) * 10,
    norm_offset=0.0,
    wide_norms=True,
    value_norm=True,
    output_scales=True,
    query_scale=16.0,
    embedding_scale=5376**0.5,
    logit_cap=30.0,
    max_position_embeddings=262144,
)
SHAPES["gemma-4-26b-a4b"] = replace(
    SHAPES["gemma-4-31b"],
    name="gemma-4-26b-a4b",
    hidden_size=2816,
    intermediate_size=2112,
    num_layers=30,
    num_heads=16,
    num_kv_heads=8,
    global_kv_heads=2,
    windows=(1024, 1024, 1024, 1024, 1024, 0) * 5,
    embedding_scale=2816**0.5,
    num_experts=128,
    experts_per_token=8,
    parallel_expert_size=704,
)
SHAPES["diffusiongemma-26b-a4b"] = replace(
    SHAPES["gemma-4-26b-a4b"],
    name="diffusiongemma-26b-a4b",
    family="diffusion_gemma_text",
    diffusion=NoiseDiffusion(256, 262144),
)
SHAPES["qwen3.5-35b-a3b"] = replace(
    _QWEN3_MOE,
    name="qwen3.5-35b-a3b",
    family="qwen3_5_moe_text",
    vocab_size=248320,
    hidden_size=2048,
    intermediate_size=512,
    num_layers=40,
    num_heads=16,
    num_kv_heads=2,
    head_dim=256,
    rope_theta=10000000.0,
    rotary_dim=64,
    norm_offset=1.0,
    num_experts=256,
    shared_expert_size=512,
    output_gate=True,
    delta=DeltaSizes(key_heads=16, value_heads=32, key_dim=128, value_dim=128, taps=4),
    recurrent=(True, True, True, False) * 10,
    eos_token_ids=(248046, 248044),
)
SHAPES["gpt-oss-20b"] = replace(
    _LLAMA_3_1,
    name="gpt-oss-20b",
    family="gpt_oss",
    vocab_size=201088,
    hidden_size=2880,
    intermediate_size=2880,
    num_layers=24,
    num_heads=64,
    head_dim=64,
    rope_theta=150000.0,
    rope_scaling=YarnScaling(32.0, 32.0, 1.0, 4096, 1.3465735902799727, truncate=False),
    windows=(128, 0) * 12,
    attention_bias=True,
    attention_sinks=True,
    activation="clamped",
    mlp_bias=True,
    num_experts=32,
    experts_per_token=4,
    bos_token_id=199998,
    eos_token_ids=(200002, 199999, 200012),
)

for _name, _like, _diffusion in (
    ("sdar-8b", "qwen3-8b", MaskDiffusion(4, 4, 151669, 0.85)),
    ("fast-dllm-v2-7b", "qwen2.5-7b", MaskDiffusion(32, 8, 151665, 0.9, shifted=True)),
):
    SHAPES[_name] = replace(SHAPES[_like], name=_name, diffusion=_diffusion)
SHAPES["moonlight-16b-a3b"] = replace(
    _LLAMA_3_1,
    name="moonlight-16b-a3b",
    family="deepseek_v3",
    vocab_size=163840,
    hidden_size=2048,
    intermediate_size=1408,
    num_layers=27,
    num_heads=16,
    num_kv_heads=1,
    head_dim=576,
    rope_theta=50000.0,
    rope_scaling=None,
    rotary_dim=64,
    query_scale=3**0.5,
    latent=LatentSizes(query_rank=0, rank=512, plain_dim=128, rotary_dim=64, value_dim=128),
    dense_layers=1,
    dense_size=11264,
    num_experts=64,
    experts_per_token=6,
    shared_expert_size=2816,
    shared_expert_gate=False,
    sigmoid_routing=True,
    routing_scale=2.446,
    max_position_embeddings=8192,
    bos_token_id=163584,
    eos_token_ids=(163585,),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the drafter beside it, as they are compiled."""

    target: DecoderConfig  # the target's shape
    drafter: DraftConfig | None  # the drafter's shape; None to decode plainly
    weights: WeightFormat = "float"  # form of the target's matrices
    # Most tokens of a verification of what prompt lookup found, the target's newest token included;
    # 1 without prompt lookup.
    prompt_lookup_block: int = 1

    def features(self, mesh: Mesh, dtype: DTypeLike) -> FeatureForm:
        """Return the form of the features of a position, with a projection of shapes only."""
        drafter = self.drafter
        if drafter is None:
            return NO_FEATURES
        module = method_of(drafter).module
        projection = jax.eval_shape(
            lambda: module(drafter, dtype=dtype, rngs=nnx.Rngs(0)).projection
        )
        placed = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(
                array.shape, array.dtype, sharding=projection_sharding(array, mesh)
            ),
            projection,
        )
        return FeatureForm(drafter.target_layer_ids, placed)

    @property
    def max_block(self) -> int:
        """Most tokens of a decoding row, the anchor included, or of a canvas."""
        if self.target.diffusion is not None:
            return self.target.diffusion.canvas_tokens
        drafter_block = 1 if self.drafter is None else self.drafter.block_size
        return max(drafter_block, self.prompt_lookup_block)


def target_shape(name: str) -> DecoderConfig:
    """Return the shape of a target: a published one by name, or that of a checkpoint."""
    if name in SHAPES:
        return SHAPES[name]
    config = load_checkpoint_config(resolve_target(name)).config
    family_of_model_type(config.family)  # refuses those that we do not compute
    return config


def drafter_shape(name: str, target: DecoderConfig, block_size: int) -> DraftConfig | None:
    """Return the shape of a drafter for a target; AotError if there is none that fits.

    `name` is "dflash" or "eagle3" for the published shape, "none", or a directory with a
    `config.json`; `block_size` is for a drafter that does not say.
    """
    try:
        if name == NO_DRAFTER:
            return None
        if target.diffusion is not None:
            raise AotError(f"a diffusion target takes no drafter: --drafter {NO_DRAFTER}")
        if name == "dflash":
            return DFlashConfig.default_for(
                target,
                block_size=block_size,
                num_layers=PUBLISHED_DRAFT_LAYERS,
                num_features=PUBLISHED_FEATURES,
            )
        if name == "eagle3":
            drafter = Eagle3Config.default_for(target, block_size=block_size)
            size = min(PUBLISHED_EAGLE3_VOCABULARY, target.vocab_size)
            return replace(drafter, draft_vocab_size=size)
        if not Path(name).is_dir():
            raise AotError(f"--drafter is no directory, nor dflash, eagle3 or none: {name!r}")
        published = read_json(Path(name) / "config.json", required=True)
        method = published_method(published)
        shape: DraftConfig = method.config_type.from_hf(published, target, block_size=block_size)
        return shape
    except (TypeError, ValueError) as error:
        raise AotError(f"drafter {name}: {error}") from error
