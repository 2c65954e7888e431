"""Shapes of published models, for compiling and modelling a step without their weights."""

from dataclasses import replace

from blockdraft_models.decoder.config import DecoderConfig, RopeScaling

_LLAMA_3_1_8B = DecoderConfig(
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
_LLAMA_3_2_1B = replace(
    _LLAMA_3_1_8B,
    name="llama-3.2-1b",
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    head_dim=64,
    rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
    tie_word_embeddings=True,
)
_QWEN3_4B = DecoderConfig(
    name="qwen3-4b",
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    attention_bias=False,
    qk_norm=True,
    max_position_embeddings=40960,
    bos_token_id=None,
    eos_token_ids=(151645, 151643),
)
_QWEN3_8B = replace(
    _QWEN3_4B,
    name="qwen3-8b",
    hidden_size=4096,
    intermediate_size=12288,
    tie_word_embeddings=False,
)

SHAPES = {
    shape.name: shape
    for shape in (
        _LLAMA_3_2_1B,
        replace(
            _LLAMA_3_2_1B,
            name="llama-3.2-3b",
            hidden_size=3072,
            num_layers=28,
            num_heads=24,
            head_dim=128,
        ),
        _LLAMA_3_1_8B,
        replace(
            _QWEN3_4B,
            name="qwen3-0.6b",
            hidden_size=1024,
            intermediate_size=3072,
            num_layers=28,
            num_heads=16,
        ),
        replace(
            _QWEN3_4B,
            name="qwen3-1.7b",
            hidden_size=2048,
            intermediate_size=6144,
            num_layers=28,
            num_heads=16,
        ),
        _QWEN3_4B,
        _QWEN3_8B,
        replace(
            _QWEN3_8B,
            name="qwen3-14b",
            hidden_size=5120,
            intermediate_size=17408,
            num_layers=40,
            num_heads=40,
        ),
        replace(
            _QWEN3_8B,
            name="qwen3-32b",
            hidden_size=5120,
            intermediate_size=25600,
            num_layers=64,
            num_heads=64,
        ),
    )
}
