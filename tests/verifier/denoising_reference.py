"""The published programs for denoising, followed step by step on a float64 decoder.

SDAR: `block_diffusion_generate` of JetAstra/SDAR's generate.py at 59549b1, with
`low_confidence_dynamic` and as many denoising steps as a block has tokens. Fast-dLLM v2:
`batch_sample` of NVlabs/Fast-dLLM's v2/generation_functions.py, without its cache of sub-blocks.
Both are for one sequence here, neither knows a KV cache, and neither chooses the mask.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from tests.models.reference_decoder import ReferenceDecoder

from blockdraft_models.decoder.sampling import gumbel_noise, seed_words
from blockdraft_models.diffusion import Diffusion
from blockdraft_models.sampling_options import GREEDY, Sampling

Sample = Callable[[np.ndarray, int], tuple[int, float]]
"""Returns a token, chosen from logits for the choice after a position, and its probability."""


def completion(
    reference: ReferenceDecoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling = GREEDY,
    stops: frozenset[int] = frozenset(),
) -> list[int]:
    """Return what a prompt is completed to: `count` tokens, or up to one that stops."""
    diffusion = reference.config.diffusion
    assert diffusion is not None
    run = _fast_dllm if diffusion.shifted else _sdar
    tokens = run(reference, diffusion, list(prompt), len(prompt) + count, sampling, stops)
    output = tokens[len(prompt) :][:count]
    ends = [index + 1 for index, token in enumerate(output) if token in stops]
    return output[: ends[0]] if ends else output


def _sampler(diffusion: Diffusion, sampling: Sampling, step: int) -> Sample:
    seed = (sampling.seed + step * 0x9E3779B97F4A7C15) % 2**64

    def sample(logits: np.ndarray, after: int) -> tuple[int, float]:
        scaled = np.where(np.arange(len(logits)) == diffusion.mask_token_id, -np.inf, logits)
        scaled = scaled / (sampling.temperature or 1.0)
        shares = np.exp(scaled - scaled.max())
        shares /= shares.sum()
        if not sampling.temperature:
            return int(shares.argmax()), float(shares.max())
        words = jnp.asarray(seed_words(seed))[None]
        ids = jnp.arange(len(logits), dtype=jnp.int32)
        noise = gumbel_noise(words, jnp.array([after + 1], jnp.int32), ids)
        token = int((scaled + np.asarray(noise[0], np.float64)).argmax())
        return token, float(shares[token])

    return sample


def _sdar(
    reference: ReferenceDecoder,
    diffusion: Diffusion,
    tokens: list[int],
    total: int,
    sampling: Sampling,
    stops: frozenset[int],
) -> list[int]:
    length, mask, prompt = diffusion.canvas_tokens, diffusion.mask_token_id, len(tokens)
    x = tokens + [mask] * (-(-total // length) * length - len(tokens))
    unknown = [False] * prompt + [True] * (len(x) - prompt)
    for first in range(prompt // length * length, len(x), length):
        block = range(first, first + length)
        for step in range(length + 1):
            masked = [place for place in block if unknown[place]]
            if not masked:
                break
            logits = reference.logits(x[: first + length])
            sample = _sampler(diffusion, sampling, step)
            x0 = {place: sample(logits[place], place) for place in masked}
            sure = [place for place in masked if x0[place][1] > diffusion.least_share]
            for place in sure or [max(masked, key=lambda place: x0[place][1])]:
                x[place], unknown[place] = x0[place][0], False
        if stops & set(x[prompt : first + length]):
            break
    return x


def _fast_dllm(
    reference: ReferenceDecoder,
    diffusion: Diffusion,
    tokens: list[int],
    total: int,
    sampling: Sampling,
    stops: frozenset[int],
) -> list[int]:
    length, mask, prompt = diffusion.canvas_tokens, diffusion.mask_token_id, len(tokens)
    x = list(tokens)
    while len(x) < total and not stops & set(x[prompt:]):
        if len(x) % length == 0:
            # The clean block says the next token.
            sample = _sampler(diffusion, sampling, 0)
            x.append(sample(reference.logits(x)[-1], len(x) - 1)[0])
        first, known = len(x) // length * length, len(x) % length
        x += [mask] * (length - known)
        unknown, step = [place >= known for place in range(length)], 0
        for start in range(0, length, diffusion.part_tokens):
            part = range(start, start + diffusion.part_tokens)
            while masked := [place for place in part if unknown[place]]:
                logits = reference.logits(x)[first:]
                sample = _sampler(diffusion, sampling, step)
                x1 = {p: sample(logits[p - 1], first + p - 1) for p in masked}
                best = max(masked, key=lambda place: x1[place][1])
                for place in masked:
                    if x1[place][1] > diffusion.least_share or place == best:
                        x[first + place], unknown[place] = x1[place][0], False
                step += 1
    return x
