"""Settings of the drafter process; needs no jax, so that `--help` is quick."""

from dataclasses import dataclass

DEFAULT_LISTEN = "unix:/tmp/blockdraft-drafter.sock"
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """What a drafter process loads and how much it can hold.

    Attributes:
        target: The target's checkpoint: a directory, a `.gguf` file, a hub id, or the name of the
            default target.
        drafter: A directory, a hub id `org/name`, `random[:seed]`, `random-eagle3[:seed]`,
            "eagle3": the EAGLE-3 drafter shipped for this target, or "auto": the DFlash drafter
            shipped for it if there is one, else a random one.
        max_sequences: Most sequences with a context at once.
        max_context_tokens: Most committed positions per sequence.
        max_feature_rows: Most feature rows per sequence in one request.
        block_size: Tokens per block of a random drafter, and of one that leaves it open.
        draft_layers: Layers of a random drafter.
        dtype: Element type of weights, activations and contexts; "auto" is bfloat16 on TPU and
            float32 elsewhere.
    """

    target: str = "smollm2-135m"
    drafter: str = "auto"
    max_sequences: int = 16
    max_context_tokens: int = 2048
    max_feature_rows: int = 256
    block_size: int = 8
    draft_layers: int = 2
    dtype: str = "auto"

    def __post_init__(self) -> None:
        """Check the ranges."""
        least = {
            "max_sequences": 1,
            "max_context_tokens": 1,
            "max_feature_rows": 1,
            "block_size": 2,
            "draft_layers": 1,
        }
        for field, bound in least.items():
            value = getattr(self, field)
            if value < bound:
                raise ValueError(f"{field} must be at least {bound}, got {value}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype}")
