"""Canvases: the tokens of a diffusion target that are denoised together; pure logic.

`MaskCanvas` follows `generate.py` of SDAR at 59549b1, `low_confidence_dynamic` with a step for each
token at most, and `batch_sample` of Fast-dLLM v2; `NoiseCanvas` follows `generate` of
DiffusionGemma in transformers 5.24, with its entropy-bound sampler.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockdraft_models.diffusion import Diffusion, MaskDiffusion, NoiseDiffusion
from blockdraft_models.sampling_options import Sampling

# The odd number next to 2**64 over the golden ratio: it spreads the seeds of a canvas.
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class CanvasChoices:
    """The choices of a step for a canvas, for each of its tokens."""

    choices: Sequence[int]
    # The probability of each choice, or the entropy of its distribution if there is noise.
    scores: Sequence[float]
    likeliest: Sequence[int] = ()  # if there is noise


@dataclass(slots=True)
class MaskCanvas:
    """The tokens from `start` on, a multiple of their number; None where they are unknown."""

    diffusion: MaskDiffusion
    start: int
    tokens: list[int | None]
    step_count: int = 0  # denoising steps so far

    @classmethod
    def after(cls, tokens: Sequence[int], diffusion: MaskDiffusion) -> "MaskCanvas":
        """Return the canvas in which a sequence goes on: what it has of it, then unknown tokens."""
        start = diffusion.start(len(tokens))
        begin: list[int | None] = list(tokens[start:])
        return cls(diffusion, start, begin + [None] * (diffusion.canvas_tokens - len(begin)))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as the target takes them."""
        mask = self.diffusion.mask_token_id
        return tuple(mask if token is None else token for token in self.tokens)

    @property
    def done(self) -> bool:
        """Whether all tokens are known."""
        return None not in self.tokens

    @property
    def temperature(self) -> float:
        """The temperature by which all scores are divided."""
        return 1.0

    def leading(self, position: int) -> tuple[int, ...]:
        """Return the known tokens from a position on, up to the first that is unknown."""
        known_count = [*self.tokens, None].index(None)
        return self.token_ids[position - self.start : known_count]

    def fill(self, result: CanvasChoices) -> None:
        """Take the likely tokens of a step."""
        choices, shares = result.choices, result.scores
        size, lag = self.diffusion.part_tokens, int(self.diffusion.shifted)
        first = self.tokens.index(None) // size * size
        unknown = [place for place in range(first, first + size) if self.tokens[place] is None]
        likeliest = max(unknown, key=lambda place: shares[place - lag])
        for place in unknown:
            if place == likeliest or shares[place - lag] > self.diffusion.least_share:
                self.tokens[place] = choices[place - lag]
        self.step_count += 1


@dataclass(slots=True)
class NoiseCanvas:
    """The tokens from `start` on, at first random ones; a `seed` and the step decide which."""

    diffusion: NoiseDiffusion
    start: int
    seed: int
    token_ids: tuple[int, ...] = ()  # as the target takes them
    step_count: int = 0  # denoising steps so far
    done: bool = False
    _likeliest: tuple[int, ...] = ()
    _same_count: int = 0  # steps after which the likeliest tokens were the same

    @classmethod
    def after(
        cls, tokens: Sequence[int], diffusion: NoiseDiffusion, sampling: Sampling
    ) -> "NoiseCanvas":
        """Return the canvas after some tokens; greedy ones have the same noise for every seed."""
        canvas = cls(diffusion, len(tokens), sampling.seed if sampling.temperature else 0)
        canvas.token_ids = canvas._noise()
        return canvas

    @property
    def temperature(self) -> float:
        """The temperature by which all scores are divided."""
        return self.diffusion.temperature(self.step_count)

    def leading(self, position: int) -> tuple[int, ...]:
        """Return the tokens from a position on, none before the canvas is done."""
        return self._likeliest[position - self.start :] if self.done else ()

    def fill(self, result: CanvasChoices) -> None:
        """Keep the tokens of a step that are nearly certain, and replace the others."""
        diffusion, entropies = self.diffusion, result.scores
        self.step_count += 1
        tokens, total = list(self._noise()), 0.0
        for place in sorted(range(len(entropies)), key=entropies.__getitem__):
            if total > diffusion.entropy_bound:
                break
            tokens[place] = result.choices[place]
            total += entropies[place]
        likeliest = tuple(result.likeliest)
        self._same_count = self._same_count + 1 if likeliest == self._likeliest else 0
        self.token_ids, self._likeliest = tuple(tokens), likeliest
        certain = sum(entropies) / len(entropies) < diffusion.least_entropy
        stable = self._same_count >= diffusion.stable_steps
        self.done = (stable and certain) or self.step_count == diffusion.most_steps

    def _noise(self) -> tuple[int, ...]:
        """Return random tokens of this step."""
        drawn = random.Random(f"{self.seed % 2**64} {self.start} {self.step_count}")
        count, tokens = self.diffusion.token_count, self.diffusion.canvas_tokens
        return tuple(drawn.randrange(count) for _ in range(tokens))


Canvas = MaskCanvas | NoiseCanvas


def canvas_after(tokens: Sequence[int], diffusion: Diffusion, sampling: Sampling) -> Canvas:
    """Return the canvas in which a sequence goes on."""
    if isinstance(diffusion, MaskDiffusion):
        return MaskCanvas.after(tokens, diffusion)
    return NoiseCanvas.after(tokens, diffusion, sampling)


def step_sampling(sampling: Sampling, canvas: Canvas) -> Sampling:
    """Return the options of the next step of a canvas: each step draws by noise of its own."""
    return replace(sampling, seed=(sampling.seed + canvas.step_count * _SEED_STRIDE) % 2**64)
