"""Names and layouts of a decoder's weights in Hugging Face and GGUF checkpoints."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.diffusion import NoiseDiffusion


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a stored matrix or vector that holds several weights.

    Of several groups of rows, as of heads, it has `count` of each, from `start` in it on.
    """

    axis: int
    start: int
    count: int
    size: int  # of the axis as it is stored
    step: int = 1  # 2 where two weights alternate
    groups: int = 1  # of equal size; along the first axis only

    @property
    def index(self) -> tuple[slice, ...]:
        """Index of the part in the stored array, or in a group of it."""
        part = slice(self.start, self.start + self.count * self.step, self.step)
        return (*(slice(None),) * self.axis, part)

    def rows(self, read: Callable[[slice], Any], start: int, stop: int) -> Any:
        """Return rows of the part, by a function that reads rows of the stored array."""
        if self.groups == 1:
            return read(slice(self.start + start, self.start + stop))
        first, last, size = start // self.count, -(-stop // self.count), self.size // self.groups
        stored = read(slice(first * size, last * size))
        row = stored.shape[1:]
        part = stored.reshape(-1, size, *row)[:, self.index[0]].reshape(-1, *row)
        return part[start - first * self.count :][: stop - start]


@dataclass(frozen=True, slots=True)
class TensorName:
    """A weight under its three names.

    The weights of all experts of a layer are one weight here. A Hugging Face checkpoint stores them
    as one tensor too, or, with `{}` in the name, as one per expert; fields about a stored matrix
    describe that of one expert.
    """

    path: str  # dotted attribute path in `Decoder`
    hf: str
    gguf: str
    # As the decoder stores it: matrices are [out, in], those of experts [experts, inner, hidden].
    shape: tuple[int, ...]
    # Llama.cpp interleaves the rotary halves of q and k rows of Llama-architecture models; the
    # number of heads to undo that for, else 0.
    permuted_heads: int = 0
    of_experts: bool = False  # whether the first axis is that of experts
    outputs_last: bool = False  # of experts: whether the last axis is that of outputs
    transposed: bool = False  # whether files store a matrix the other way round
    cut: Cut | None = None  # of a Hugging Face tensor; None for the whole
    wide: bool = False  # whether it is float32 whatever the other weights are
    # Another form that Hugging Face files may have it in, or None.
    alternative: "TensorName | None" = None

    def stored(self, *, is_gguf: bool) -> dict[str, tuple[int, ...]]:
        """Return the stored tensors of the weight, and their shapes."""
        leading, matrix = (self.shape[:1], self.shape[1:]) if self.of_experts else ((), self.shape)
        if self.transposed:
            matrix = matrix[::-1]
        if is_gguf:
            return {self.gguf: (*leading, *matrix)}
        if self.cut is not None:
            axis = self.cut.axis
            matrix = (*matrix[:axis], self.cut.size, *matrix[axis + 1 :])
        if "{}" in self.hf:
            return {self.hf.format(number): matrix for number in range(self.shape[0])}
        return {self.hf: (*leading, *matrix)}

    def arranged(self, matrix: Any, *, is_gguf: bool) -> Any:
        """Return a stored matrix or vector, of one expert, in the decoder's layout."""
        if self.cut is not None and not is_gguf:
            matrix = matrix[self.cut.index]
        return matrix.T if self.transposed else matrix


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


def final_norm_name(config: DecoderConfig) -> TensorName:
    """Return the names of the norm before the head."""
    return TensorName(
        "norm.scale", "model.norm.weight", "output_norm.weight", (config.hidden_size,)
    )


def layer_embedding_names(config: DecoderConfig) -> Iterator[TensorName]:
    """Yield the names of the embeddings that layers have of their own, if they do."""
    size, hidden = config.layer_embedding_size, config.hidden_size
    width = config.num_layers * size
    if size:
        for ours, theirs, ggml, shape in (
            ("embedding.table", "embed_tokens_per_layer", "per_layer_token_embd",
             (config.vocab_size, width)),
            ("projection.weight", "per_layer_model_projection", "per_layer_model_proj",
             (width, hidden)),
            ("norm.scale", "per_layer_projection_norm", "per_layer_proj_norm", (size,)),
        ):  # fmt: skip
            names = f"layer_embeddings.{ours}", f"model.{theirs}.weight", f"{ggml}.weight"
            yield TensorName(*names, shape)


def conditioning_names(config: DecoderConfig) -> Iterator[TensorName]:
    """Yield the names of what conditions canvases, if they begin as noise."""
    if not isinstance(config.diffusion, NoiseDiffusion):
        return
    hidden, inner = config.hidden_size, config.of_layer(0).intermediate_size
    for ours, theirs, shape in (
        ("norm.scale", "pre_norm", (hidden,)),
        ("mlp.gate.weight", "gate_proj", (inner, hidden)),
        ("mlp.up.weight", "up_proj", (inner, hidden)),
        ("mlp.down.weight", "down_proj", (hidden, inner)),
    ):
        stored = f"model.self_conditioning.{theirs}.weight"
        yield TensorName(f"conditioning.{ours}", stored, "", shape)


class LayerNames:
    """Names of a layer's weights, made from their names within the layer."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        """Begin names of layer number `layer`."""
        self.config = config.of_layer(layer)  # the sizes of this layer
        self._places = f"layers.{layer}", f"model.layers.{layer}", f"blk.{layer}"

    def __call__(
        self, ours: str, theirs: str, ggml: str, shape: tuple[int, ...], **form: Any
    ) -> TensorName:
        """Return the names of a weight from those within the layer."""
        path, hf, gguf = map(".".join, zip(self._places, (ours, theirs, ggml), strict=True))
        return TensorName(path, hf, gguf, shape, **form)

    def elsewhere(self, ours: str, part: str, theirs: str, shape: tuple[int, ...]) -> TensorName:
        """Return the names of a weight in another part of a Hugging Face model."""
        path, body, _ = self._places
        stored = f"{part}.{body.removeprefix('model.')}.{theirs}"
        return TensorName(f"{path}.{ours}", stored, "", shape)

    def expert(
        self, ours: str, theirs: str, ggml: str, *, in_out: bool = False, **form: Any
    ) -> TensorName:
        """Return the names of a matrix of all experts; files have [in out], or else [out in]."""
        config, is_down = self.config, ours.endswith("down.weight")
        inner = config.parallel_expert_size or config.intermediate_size
        return self(
            ours,
            theirs,
            ggml,
            (config.num_experts, inner, config.hidden_size),
            of_experts=True,
            outputs_last=is_down,
            transposed=is_down != in_out,
            **form,
        )

    def norm(self, ours: str, theirs: str, ggml: str, width: int | None = None) -> TensorName:
        """Return the names of a norm's scale; `width` is by default the hidden size."""
        width = self.config.hidden_size if width is None else width
        return self(f"{ours}.scale", f"{theirs}.weight", f"{ggml}.weight", (width,))

    def attention(self, *, permuted: bool = False) -> Iterator[TensorName]:
        """Yield the names of attention's weights, stored one by one as in most families."""
        config = self.config
        hidden, head_dim = config.hidden_size, config.head_dim
        q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim
        q_heads, k_heads = (config.num_heads, config.num_kv_heads) if permuted else (0, 0)
        for ours, theirs, ggml, shape, heads in (
            ("query", "q_proj", "attn_q", (q_width, hidden), q_heads),
            ("key", "k_proj", "attn_k", (kv_width, hidden), k_heads),
            ("value", "v_proj", "attn_v", (kv_width, hidden), 0),
            ("output", "o_proj", "attn_output", (hidden, q_width), 0),
        ):
            if (ours == "value" and config.values_are_keys) or (
                ours in ("key", "value") and not config.own_kv
            ):
                continue
            names = f"attention.{ours}", f"self_attn.{theirs}", ggml
            has_bias = config.attention_bias and (ours != "output" or config.output_bias)
            for kind, size in (("weight", shape), ("bias", shape[:1])):
                if kind == "weight" or has_bias:
                    a, b, c = (f"{name}.{kind}" for name in names)
                    yield self(a, b, c, size, permuted_heads=heads)
        if config.qk_norm:
            widths = (q_width, kv_width) if config.whole_qk_norm else (head_dim, head_dim)
            yield self.norm("attention.query_norm", "self_attn.q_norm", "attn_q_norm", widths[0])
            if config.own_kv:
                yield self.norm("attention.key_norm", "self_attn.k_norm", "attn_k_norm", widths[1])

    def mlp(self) -> Iterator[TensorName]:
        """Yield the names of a gated MLP's weights, stored one by one as in most families."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)),
                            ("down", (hidden, inner))):  # fmt: skip
            stored = f"mlp.{name}_proj.weight", f"ffn_{name}.weight"
            yield self(f"mlp.{name}.weight", *stored, shape)
