"""Scalings by which published models stretch the rotary frequencies for longer contexts."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of the low rotary frequencies ("llama3" in `rope_scaling`)."""

    factor: float  # divisor of the lowest frequencies
    # Wavelengths above `original_max_position_embeddings / low_freq_factor` are slowed by the whole
    # `factor`.
    low_freq_factor: float
    # Wavelengths below `original_max_position_embeddings / high_freq_factor` are left alone; those
    # between are interpolated.
    high_freq_factor: float
    original_max_position_embeddings: int  # context length before stretching, in tokens

    def __post_init__(self) -> None:
        """Refuse values for which the interpolation is undefined."""
        _check_factor(self.factor)
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ValueError(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.original_max_position_embeddings < 1:
            raise ValueError("rope scaling original_max_position_embeddings must be positive")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """The same factor for all frequencies ("linear")."""

    factor: float

    def __post_init__(self) -> None:
        """Refuse values that are no factor."""
        _check_factor(self.factor)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071, section 3.2 to 3.4)."""

    factor: float  # divisor of low frequencies
    beta_fast: float  # turns in the original context from which on frequencies stay the same
    beta_slow: float  # turns up to which the whole factor applies
    original_max_position_embeddings: int
    attention_factor: float  # factor of rotated queries and keys
    truncate: bool = True  # whether the ends of the ramp are whole dimensions

    def __post_init__(self) -> None:
        """Refuse values for which the interpolation is undefined."""
        _check_factor(self.factor)
        if not 0 < self.beta_slow <= self.beta_fast < math.inf:
            raise ValueError("rope scaling needs 0 < beta_slow <= beta_fast")
        if self.original_max_position_embeddings < 1 or not 0 < self.attention_factor < math.inf:
            raise ValueError("rope scaling needs a positive context and attention factor")


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753) within the original context, where its short factors hold."""

    short_factors: tuple[float, ...]  # divisor of each frequency
    attention_factor: float  # factor of rotated queries and keys

    def __post_init__(self) -> None:
        """Refuse values that are no factors."""
        if not all(
            0 < factor < math.inf for factor in (*self.short_factors, self.attention_factor)
        ):
            raise ValueError("rope scaling factors must be positive")

    def check(self, frequencies: int) -> None:
        """Refuse, by a ValueError, more or fewer factors than frequencies."""
        if len(self.short_factors) != frequencies:
            raise ValueError(
                f"rope scaling has {len(self.short_factors)} factors for {frequencies} frequencies"
            )


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """Frequencies as of the whole head, of which only the highest rotate ("proportional")."""

    rotated: int  # frequencies
    factor: float = 1.0  # divisor of them

    def __post_init__(self) -> None:
        """Refuse values that are no factor."""
        _check_factor(self.factor)


AnyRopeScaling = RopeScaling | LinearScaling | YarnScaling | LongRopeScaling | ProportionalScaling


def _check_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise ValueError(f"rope scaling factor must be at least 1, got {factor}")
