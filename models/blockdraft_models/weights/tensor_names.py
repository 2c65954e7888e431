"""Where each weight of a decoder is found in Hugging Face and GGUF checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockdraft_models.decoder.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class TensorName:
    """One weight under its three names."""

    path: str  # dotted attribute path in `Decoder`
    hf: str
    gguf: str
    shape: tuple[int, ...]  # as both formats and the decoder store it; matrices are [out, in]
    # Llama.cpp interleaves the rotary halves of q and k rows of Llama-architecture models; the
    # number of heads to undo that for, else 0.
    permuted_heads: int = 0


def embedding_name(config: DecoderConfig) -> TensorName:
    """Return the embedding table's names."""
    shape = (config.vocab_size, config.hidden_size)
    return TensorName("embedding.table", "model.embed_tokens.weight", "token_embd.weight", shape)


def head_name(config: DecoderConfig) -> TensorName | None:
    """Return the untied head's names, or None when the embedding is the head."""
    if config.tie_word_embeddings:
        return None
    shape = (config.vocab_size, config.hidden_size)
    return TensorName("head.weight", "lm_head.weight", "output.weight", shape)


def tensor_names(config: DecoderConfig) -> Iterator[TensorName]:
    """Yield every weight of the decoder, each once, in a fixed order."""
    yield embedding_name(config)
    for layer in range(config.num_layers):
        yield from _layer(config, layer)
    yield TensorName("norm.scale", "model.norm.weight", "output_norm.weight", (config.hidden_size,))
    head = head_name(config)
    if head is not None:
        yield head


def _layer(config: DecoderConfig, layer: int) -> Iterator[TensorName]:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim
    # Only llama.cpp's "llama" architecture is permuted, and of ours only Qwen3 has q/k norm.
    q_heads, k_heads = (0, 0) if config.qk_norm else (config.num_heads, config.num_kv_heads)
    path, hf, gguf = f"layers.{layer}", f"model.layers.{layer}", f"blk.{layer}"

    def norm(ours: str, theirs: str, ggml: str, width: int) -> TensorName:
        return TensorName(
            f"{path}.{ours}.scale", f"{hf}.{theirs}.weight", f"{gguf}.{ggml}.weight", (width,)
        )

    def matrix(
        ours: str, theirs: str, ggml: str, shape: tuple[int, int], heads: int = 0
    ) -> TensorName:
        return TensorName(
            f"{path}.{ours}.weight",
            f"{hf}.{theirs}.weight",
            f"{gguf}.{ggml}.weight",
            shape,
            permuted_heads=heads,
        )

    yield norm("attention_norm", "input_layernorm", "attn_norm", hidden)
    for ours, theirs, ggml, shape, heads in (
        ("query", "q_proj", "attn_q", (q_width, hidden), q_heads),
        ("key", "k_proj", "attn_k", (kv_width, hidden), k_heads),
        ("value", "v_proj", "attn_v", (kv_width, hidden), 0),
        ("output", "o_proj", "attn_output", (hidden, q_width), 0),
    ):
        yield matrix(f"attention.{ours}", f"self_attn.{theirs}", ggml, shape, heads)
        if config.attention_bias:
            yield TensorName(
                f"{path}.attention.{ours}.bias",
                f"{hf}.self_attn.{theirs}.bias",
                f"{gguf}.{ggml}.bias",
                shape[:1],
                permuted_heads=heads,
            )
    if config.qk_norm:
        yield norm("attention.query_norm", "self_attn.q_norm", "attn_q_norm", head_dim)
        yield norm("attention.key_norm", "self_attn.k_norm", "attn_k_norm", head_dim)
    yield norm("mlp_norm", "post_attention_layernorm", "ffn_norm", hidden)
    yield matrix("mlp.gate", "mlp.gate_proj", "ffn_gate", (inner, hidden))
    yield matrix("mlp.up", "mlp.up_proj", "ffn_up", (inner, hidden))
    yield matrix("mlp.down", "mlp.down_proj", "ffn_down", (hidden, inner))
