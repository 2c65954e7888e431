"""A canvas: the tokens of a diffusion target that are denoised together; pure logic.

SDAR (arXiv 2510.06303; `low_confidence_dynamic` of its `generate.py` at 59549b1, with a step for
each token at most) and Fast-dLLM v2 (arXiv 2509.26328; `batch_sample`) fill a canvas by one rule;
see `Diffusion`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from blockdraft_models.diffusion import Diffusion
from blockdraft_models.sampling_options import Sampling

# The odd number next to 2**64 over the golden ratio: it spreads the seeds of a canvas.
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class Canvas:
    """The tokens from `start` on, a multiple of their number; None where they are unknown."""

    diffusion: Diffusion
    start: int
    tokens: list[int | None]
    step_count: int = 0  # denoising steps so far

    @classmethod
    def after(cls, tokens: Sequence[int], diffusion: Diffusion) -> "Canvas":
        """Return the canvas in which a sequence goes on: what it has of it, then unknown tokens."""
        length = diffusion.canvas_tokens
        start = len(tokens) // length * length
        begin: list[int | None] = list(tokens[start:])
        return cls(diffusion, start, begin + [None] * (length - len(begin)))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as the target takes them."""
        mask = self.diffusion.mask_token_id
        return tuple(mask if token is None else token for token in self.tokens)

    def leading(self, position: int) -> tuple[int, ...]:
        """Return the known tokens from a position on, up to the first that is unknown."""
        following = self.tokens[position - self.start :]
        return tuple(takewhile(lambda token: token is not None, following))  # type: ignore[arg-type]

    def options(self, sampling: Sampling) -> Sampling:
        """Return the options of the next step: each draws by noise of its own."""
        seed = sampling.seed + self.step_count * _SEED_STRIDE
        return replace(sampling, seed=seed % 2**64)

    def fill(self, choices: Sequence[int], shares: Sequence[float]) -> None:
        """Take the tokens of a step, given for each token of the canvas.

        `shares` are the probabilities of the choices.
        """
        size, lag = self.diffusion.part_tokens, int(self.diffusion.shifted)
        first = self.tokens.index(None) // size * size
        unknown = [place for place in range(first, first + size) if self.tokens[place] is None]
        likeliest = max(unknown, key=lambda place: shares[place - lag])
        for place in unknown:
            if place == likeliest or shares[place - lag] > self.diffusion.least_share:
                self.tokens[place] = choices[place - lag]
        self.step_count += 1
