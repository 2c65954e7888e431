"""The published programs for denoising, followed step by step on a float64 decoder.

SDAR: `block_diffusion_generate` of JetAstra/SDAR's generate.py at 59549b1, with
`low_confidence_dynamic` and as many denoising steps as a block has tokens. Fast-dLLM v2:
`batch_sample` of NVlabs/Fast-dLLM's v2/generation_functions.py, without its cache of sub-blocks.
DiffusionGemma: `generate` of transformers 5.24, with `EntropyBoundSampler` and
`StableAndConfidentStoppingCriteria`. All are for one sequence here, and none knows a KV cache or
chooses a mask. Random numbers are this project's.
"""

import random
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from tests.models.reference_decoder import ReferenceDecoder

from blockdraft_models.decoder.sampling import gumbel_noise, seed_words
from blockdraft_models.diffusion import MaskDiffusion, NoiseDiffusion
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
    if isinstance(diffusion, NoiseDiffusion):
        return _ended(_diffusion_gemma(reference, diffusion, list(prompt), count, sampling), stops)
    assert isinstance(diffusion, MaskDiffusion)
    run = _fast_dllm if diffusion.shifted else _sdar
    tokens = run(reference, diffusion, list(prompt), len(prompt) + count, sampling, stops)
    return _ended(tokens[len(prompt) :][:count], stops)


def _ended(output: list[int], stops: frozenset[int]) -> list[int]:
    ends = [index + 1 for index, token in enumerate(output) if token in stops]
    return output[: ends[0]] if ends else output


def _noise(sampling: Sampling, step: int, after: int, token_count: int) -> np.ndarray:
    words = jnp.asarray(seed_words((sampling.seed + step * 0x9E3779B97F4A7C15) % 2**64))[None]
    ids = jnp.arange(token_count, dtype=jnp.int32)
    noise = gumbel_noise(words, jnp.array([after + 1], jnp.int32), ids)
    return np.asarray(noise[0], np.float64)


def _sampler(diffusion: MaskDiffusion, sampling: Sampling, step: int) -> Sample:
    def sample(logits: np.ndarray, after: int) -> tuple[int, float]:
        scaled = np.where(np.arange(len(logits)) == diffusion.mask_token_id, -np.inf, logits)
        scaled = scaled / (sampling.temperature or 1.0)
        shares = np.exp(scaled - scaled.max())
        shares /= shares.sum()
        if not sampling.temperature:
            return int(shares.argmax()), float(shares.max())
        token = int((scaled + _noise(sampling, step, after, len(logits))).argmax())
        return token, float(shares[token])

    return sample


def _sdar(
    reference: ReferenceDecoder,
    diffusion: MaskDiffusion,
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
    diffusion: MaskDiffusion,
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


def _diffusion_gemma(
    reference: ReferenceDecoder,
    diffusion: NoiseDiffusion,
    text: list[int],
    count: int,
    sampling: Sampling,
) -> list[int]:
    prompt, length = len(text), diffusion.canvas_tokens
    while len(text) < prompt + count:
        start, seed = len(text), sampling.seed if sampling.temperature else 0

        def initialize(step: int, start: int = start, seed: int = seed) -> list[int]:
            drawn = random.Random(f"{seed % 2**64} {start} {step}")
            return [drawn.randrange(diffusion.token_count) for _ in range(length)]

        current, history, shares = initialize(0), [[-1] * length] * diffusion.stable_steps, None
        for remaining in range(diffusion.most_steps, 0, -1):
            step = diffusion.most_steps - remaining
            spread = diffusion.first_temperature - diffusion.last_temperature
            temperature = diffusion.last_temperature + spread * remaining / diffusion.most_steps
            logits = reference.canvas_logits(text, current, shares) / temperature
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            argmax = logits.argmax(-1).tolist()
            denoiser = argmax
            if sampling.temperature:
                noise = [_noise(sampling, step, start + i, len(logits[0])) for i in range(length)]
                denoiser = (logits / sampling.temperature + np.stack(noise)).argmax(-1).tolist()
            entropy = -np.sum(np.where(shares > 0, shares * np.log(shares + 1e-300), 0), -1)
            order = np.argsort(entropy, kind="stable")
            cumulative = np.cumsum(entropy[order])
            selected = order[cumulative - entropy[order] <= diffusion.entropy_bound]
            current = initialize(step + 1)
            for place in selected:
                current[place] = denoiser[place]
            stable = all(canvas == argmax for canvas in history)
            history = [*history, argmax][1:]
            if stable and entropy.mean() < diffusion.least_entropy:
                break
        text = text + argmax
    return text[prompt:][:count]
