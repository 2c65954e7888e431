"""The layers of a decoder as periods: sequences of forms that repeat."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft_models.decoder.config import DecoderConfig, LayerForm


@dataclass(frozen=True, slots=True)
class Period:
    """Layers whose forms repeat, as five with a window and one without (Gemma 4)."""

    first: int  # number of the first layer
    length: int  # layers until the forms repeat
    count: int  # how often they come

    @property
    def layers(self) -> int:
        """Number of layers, all repetitions together."""
        return self.length * self.count

    def places(self) -> list[slice]:
        """Return the layers of the same place in every repetition, place by place."""
        stop = self.first + self.layers
        return [slice(self.first + place, stop, self.length) for place in range(self.length)]


@functools.cache
def periods(config: DecoderConfig) -> tuple[Period, ...]:
    """Return the periods of a decoder in order: one of one layer, if all have the same form."""
    forms = [config.form(layer) for layer in range(config.num_layers)]
    parts: list[Period] = []
    first = 0
    while first < len(forms):
        parts.append(_longest(forms, first))
        first += parts[-1].layers
    return tuple(parts)


def _longest(forms: Sequence[LayerForm], first: int) -> Period:
    """Return the period from a layer on that covers most layers, the shortest of those."""
    lengths = range(1, (len(forms) - first) // 2 + 1)
    candidates = (Period(first, length, _count(forms, first, length)) for length in lengths)
    repeated = (period for period in candidates if period.count > 1)
    return max(repeated, key=lambda period: period.layers, default=Period(first, 1, 1))


def _count(forms: Sequence[LayerForm], first: int, length: int) -> int:
    """Return how often the forms of some layers come one after another."""
    period, count = forms[first : first + length], 1
    while forms[first + count * length :][:length] == period:
        count += 1
    return count
