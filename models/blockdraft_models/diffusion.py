"""The definition of generation by denoising; it needs no JAX, as the scheduler uses it too."""

from dataclasses import dataclass

_LARGEST_CANVAS = 256


@dataclass(frozen=True, slots=True)
class Diffusion:
    """How a target generates canvases of tokens, each by denoising (arXiv 2510.06303, 2509.26328).

    A canvas begins at a multiple of its length, its unknown tokens as masks. A step of the target
    chooses a token for every mask. Those of a probability above `least_share` are taken, and at
    least the one of the greatest. A canvas is filled part after part.
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
