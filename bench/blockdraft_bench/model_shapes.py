"""Shapes of published models, for modelling a step without their weights."""

from blockdraft_models.config import DecoderConfig, RopeScaling

SHAPES = {
    "llama-3.1-8b": DecoderConfig(
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
    ),
    "qwen3-4b": DecoderConfig(
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
    ),
}
