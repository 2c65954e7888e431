"""The definition of generation by denoising; it needs no JAX, as the scheduler uses it too.

A target with a *canvas* generates so many tokens at a time, in steps that run all of them.
"""

from dataclasses import dataclass

_LARGEST_CANVAS = 256


@dataclass(frozen=True, slots=True)
class MaskDiffusion:
    """Canvases of masks that tokens replace (SDAR, arXiv 2510.06303; Fast-dLLM v2, 2509.26328).

    A canvas begins at a multiple of its length, and positions of one see each other, in a prompt
    too. A step chooses a token for every mask. Those of a probability above `least_share` are
    taken, and at least the one of the greatest. A canvas is filled part after part.
    """

    canvas_tokens: int
    part_tokens: int
    mask_token_id: int
    least_share: float
    # Whether the scores after a token are those of the next one: the first token of a canvas then
    # follows from the canvas before it, as in decoding.
    shifted: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that no target can have."""
        canvas, part = self.canvas_tokens, self.part_tokens
        if not 1 < canvas <= _LARGEST_CANVAS or part < 1 or canvas % part:
            raise ValueError(f"canvases of {canvas} tokens in parts of {part} are not supported")

    @property
    def grain(self) -> int:
        """Tokens of which rows of a prompt are multiples."""
        return self.canvas_tokens

    @property
    def most_row_tokens(self) -> int:
        """Tokens of a canvas and of the one before it, which is committed in the same row."""
        return 2 * self.canvas_tokens

    def start(self, length: int) -> int:
        """Return where the canvas begins in which a sequence of some tokens goes on."""
        return length // self.canvas_tokens * self.canvas_tokens

    def settled(self, length: int) -> int:
        """Return how many of its tokens are committed before a canvas is denoised."""
        return self.start(length) - self.canvas_tokens


@dataclass(frozen=True, slots=True)
class NoiseDiffusion:
    """Canvases of random tokens (DiffusionGemma: `generate` in transformers 5.24).

    A canvas begins where the text ends. Its positions see each other and the text, whose positions
    see what is before them. A step draws all tokens, and keeps those of the least entropies while
    these add up to `entropy_bound` at most; others become noise again. A canvas is done when its
    likeliest tokens were the same for `stable_steps` more steps, and the mean entropy is below
    `least_entropy`, or after `most_steps`. The temperature falls from step to step.
    """

    canvas_tokens: int
    token_count: int  # in the vocabulary
    most_steps: int = 48
    entropy_bound: float = 0.1
    last_temperature: float = 0.4
    first_temperature: float = 0.8
    stable_steps: int = 1
    least_entropy: float = 0.005

    def __post_init__(self) -> None:
        """Refuse sizes that no target can have."""
        if not 1 < self.canvas_tokens <= _LARGEST_CANVAS or self.most_steps < 1:
            sizes = f"{self.canvas_tokens} tokens in {self.most_steps} steps"
            raise ValueError(f"canvases of {sizes} are not supported")
        if self.stable_steps < 0 or not 0 < self.last_temperature <= self.first_temperature:
            raise ValueError("denoising at such temperatures, or so stable, is not supported")

    @property
    def grain(self) -> int:
        """Tokens of which rows of a prompt are multiples."""
        return 1

    @property
    def most_row_tokens(self) -> int:
        """Tokens of a row that is denoised."""
        return self.canvas_tokens

    def start(self, length: int) -> int:
        """Return where the canvas begins in which a sequence of some tokens goes on."""
        return length

    def settled(self, length: int) -> int:
        """Return how many of its tokens are committed before a canvas is denoised."""
        return length

    def temperature(self, step: int) -> float:
        """Return the temperature of a step, counted from 0."""
        share = (self.most_steps - step) / self.most_steps
        return self.last_temperature + (self.first_temperature - self.last_temperature) * share


Diffusion = MaskDiffusion | NoiseDiffusion
