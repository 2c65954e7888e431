"""Dense decoders in float64 NumPy, one token and one head at a time: the oracle of the decoder.

Written from the published descriptions: Llama (arXiv 2302.13971, 2407.21783: pre-RMSNorm, SwiGLU,
rotary embedding arXiv 2104.09864, grouped queries arXiv 2305.13245), the Llama 3.1 frequency
scaling of its model card, Qwen3 (arXiv 2505.09388: RMS-normalized queries and keys, no QKV
bias), OLMo 2 and 3 (arXiv 2501.00656: norms behind attention and MLP, queries and keys normalized
over all heads), Granite (four factors), Gemma 4 (other heads where there is no
window, further embeddings, layers that attend to the keys of others), and windows
and layers without rotations (arXiv 2501.18795). It shares no code with the package beyond the
configuration.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from flax import nnx

from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.rope_scaling import ProportionalScaling, RopeScaling

Params = Mapping[str, np.ndarray]


def params_from_decoder(decoder: Decoder) -> dict[str, np.ndarray]:
    """Every weight in float64 under its attribute path, e.g. `layers.0.mlp.up.weight`."""
    flat = nnx.to_flat_state(nnx.state(decoder))
    return {
        ".".join(map(str, path)): np.asarray(value[...]).astype(np.float64) for path, value in flat
    }


class ReferenceDecoder:
    def __init__(self, config: DecoderConfig, params: Params) -> None:
        self.config = config
        self.params = params
        # Where a canvas begins, and its signal, while one is computed.
        self._canvas: tuple[int, np.ndarray] | None = None
        width = config.global_head_dim or config.head_dim
        self.frequencies = [self._frequency(i, width) for i in range(width // 2)]
        self.local_frequencies = self.frequencies
        if local := config.local_rope_theta:
            dims = range(config.head_dim // 2)
            self.local_frequencies = [local ** (-2.0 * i / config.head_dim) for i in dims]

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Scores after each token of one sequence: float64 [tokens, vocab]."""
        final = self._norm(self._layer_outputs(token_ids)[-1], "norm")
        if self.config.tie_word_embeddings:
            head = self.params["embedding.table"]
        else:
            head = self.params["head.weight"]
        scores: np.ndarray = final @ head.T
        scores /= self.config.logit_divisor
        cap = self.config.logit_cap
        return scores if cap is None else cap * np.tanh(scores / cap)

    def captured(self, token_ids: Sequence[int], layer_ids: Sequence[int]) -> np.ndarray:
        """Outputs of the given layers side by side: float64 [tokens, len(layer_ids) * hidden]."""
        outputs = self._layer_outputs(token_ids)
        return np.concatenate([outputs[i] for i in layer_ids], axis=1)

    def canvas_logits(
        self, text: Sequence[int], canvas: Sequence[int], shares: np.ndarray | None
    ) -> np.ndarray:
        """Scores of a canvas behind a text (DiffusionGemma): float64 [canvas, vocab].

        `shares` [canvas, vocab] are the probabilities that the step before gave, None in the first.
        """
        table = self.params["embedding.table"]
        signal = np.zeros((len(canvas), table.shape[1]))
        if shares is not None:
            signal = shares @ table * self.config.embedding_scale
        self._canvas = len(text), signal
        try:
            return self.logits([*text, *canvas])[len(text) :]
        finally:
            self._canvas = None

    def _layer_outputs(self, token_ids: Sequence[int]) -> list[np.ndarray]:
        x = np.stack([self.params["embedding.table"][int(token)] for token in token_ids])
        x = x * self.config.embedding_scale
        if self._canvas is not None:
            start, signal = self._canvas
            fed = self._mlp(self._norm(signal, "conditioning.norm"), "conditioning.mlp")
            both = x[start:] + fed
            both /= np.sqrt(np.mean(both**2, axis=-1, keepdims=True) + self.config.rms_norm_eps)
            x = np.concatenate([x[:start], both])
        outputs = []
        self.kept: dict[bool, tuple[np.ndarray, np.ndarray]] = {}
        further = self._layer_embeddings(token_ids, x)
        for layer in range(self.config.num_layers):
            name, factor = f"layers.{layer}", self.config.residual_scale
            y = self._norm_if_there(x, f"{name}.attention_norm")
            y = self._attention(y, f"{name}.attention", layer)
            x = x + factor * self._norm_if_there(y, f"{name}.attention_output_norm")
            y = self._mlp(self._norm_if_there(x, f"{name}.mlp_norm"), f"{name}.mlp")
            x = x + factor * self._norm_if_there(y, f"{name}.mlp_output_norm")
            if self.config.layer_embedding_size:
                y = self._activated(self._linear(x, f"{name}.side_input.gate"))
                y = self._linear(y * further[:, layer], f"{name}.side_input.projection")
                x = x + self._norm(y, f"{name}.side_input.norm")
            scales = np.ones(len(x)) * self.params.get(f"{name}.output_scale", 1.0)
            if f"{name}.text_scale" in self.params:
                start = len(x) if self._canvas is None else self._canvas[0]
                scales[:start] = self.params[f"{name}.text_scale"]
            x = x * scales[:, None]
            outputs.append(x)
        return outputs

    def _layer_embeddings(self, token_ids: Sequence[int], x: np.ndarray) -> np.ndarray:
        c, name = self.config, "layer_embeddings"
        if not c.layer_embedding_size:
            return x
        shape = (len(x), c.num_layers, c.layer_embedding_size)
        table = self.params[f"{name}.embedding.table"]
        rows = np.stack([table[int(token)] for token in token_ids]).reshape(shape)
        projected = self._linear(x, f"{name}.projection").reshape(shape) / math.sqrt(c.hidden_size)
        both = self._norm(projected, f"{name}.norm") + rows * math.sqrt(c.layer_embedding_size)
        return np.asarray(both / math.sqrt(2))

    def _attention(self, x: np.ndarray, name: str, layer: int) -> np.ndarray:
        c = self.config
        window = c.windows[layer] if c.windows else 0
        width, kv_heads = c.head_dim, c.num_kv_heads
        if c.global_head_dim and not window:
            width, kv_heads = c.global_head_dim, c.global_kv_heads or kv_heads
        q = self._heads(self._linear(x, f"{name}.query"), f"{name}.query_norm", c.num_heads)
        q = self._rotated(q, layer)
        if f"{name}.key.weight" in self.params:
            projected = self._linear(x, f"{name}.key")
            v = projected
            if not (c.values_are_keys and not window):
                v = self._linear(x, f"{name}.value")
            v = v.reshape(-1, kv_heads, width)
            if c.value_norm:
                v = v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + c.rms_norm_eps)
            k = self._rotated(self._heads(projected, f"{name}.key_norm", kv_heads), layer)
            # Layers without keys take those of the last layer of their kind.
            self.kept[window > 0] = k, v
        k, v = self.kept[window > 0]
        attended = np.zeros_like(q)
        for head in range(c.num_heads):
            group = head // (c.num_heads // kv_heads)
            for at, query in enumerate(q[:, head]):
                # Positions of a canvas see each other.
                end = (at // c.canvas_grain + 1) * c.canvas_grain
                first = max(0, end - window) if window else 0
                if self._canvas is not None and at >= (start := self._canvas[0]):
                    first, end = max(0, start + 1 - window) if window else 0, len(x)
                seen = slice(first, end)
                scores = k[seen, group] @ query * c.query_scale / math.sqrt(c.head_dim)
                weights = np.exp(scores - scores.max())
                attended[at, head] = (weights / weights.sum()) @ v[seen, group]
        return self._linear(attended.reshape(len(x), -1), f"{name}.output")

    def _heads(self, x: np.ndarray, norm: str, count: int) -> np.ndarray:
        """Divide into heads, normalized all together, or each, or not at all."""
        if self.config.whole_qk_norm:
            x = self._norm(x, norm)
        heads = x.reshape(len(x), count, -1)
        if self.config.qk_norm and not self.config.whole_qk_norm:
            heads = self._norm(heads, norm)
        return heads

    def _rotated(self, heads: np.ndarray, layer: int) -> np.ndarray:
        c = self.config
        if c.rotated and not c.rotated[layer]:
            return heads
        frequencies = self.local_frequencies if c.windows and c.windows[layer] else self.frequencies
        return np.stack(
            [
                [self._rotate(head, at, frequencies) for head in token]
                for at, token in enumerate(heads)
            ]
        )

    def _mlp(self, x: np.ndarray, name: str) -> np.ndarray:
        gate = self._activated(self._linear(x, f"{name}.gate"))
        return self._linear(gate * self._linear(x, f"{name}.up"), f"{name}.down")

    def _activated(self, gate: np.ndarray) -> np.ndarray:
        if self.config.activation == "gelu_tanh":
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return np.asarray(0.5 * gate * (1 + np.tanh(inner)))
        return np.asarray(gate / (1.0 + np.exp(-gate)))

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y: np.ndarray = x @ self.params[f"{name}.weight"].T
        bias = self.params.get(f"{name}.bias")
        return y if bias is None else np.add(y, bias)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.mean(x**2, axis=-1, keepdims=True)
        scaled: np.ndarray = x / np.sqrt(mean_square + self.config.rms_norm_eps)
        return scaled * self.params[f"{name}.scale"]

    def _norm_if_there(self, x: np.ndarray, name: str) -> np.ndarray:
        return self._norm(x, name) if f"{name}.scale" in self.params else x

    def _rotate(self, head: np.ndarray, position: int, frequencies: Sequence[float]) -> np.ndarray:
        half = len(head) // 2
        rotated = np.empty_like(head)
        for i, frequency in enumerate(frequencies):
            angle = position * frequency
            a, b = head[i], head[i + half]
            rotated[i] = a * math.cos(angle) - b * math.sin(angle)
            rotated[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return rotated

    def _frequency(self, i: int, width: int) -> float:
        frequency: float = self.config.rope_theta ** (-2.0 * i / width)
        scaling = self.config.rope_scaling
        if isinstance(scaling, ProportionalScaling):
            return frequency if i < scaling.rotated else 0.0
        if scaling is None:
            return frequency
        assert isinstance(scaling, RopeScaling)
        wavelength = 2 * math.pi / frequency
        original = scaling.original_max_position_embeddings
        if wavelength < original / scaling.high_freq_factor:
            return frequency
        if wavelength > original / scaling.low_freq_factor:
            return frequency / scaling.factor
        smooth = (original / wavelength - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        return (1 - smooth) * frequency / scaling.factor + smooth * frequency
