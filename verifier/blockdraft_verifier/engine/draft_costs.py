"""What proposals cost: measured by the drafter before it serves, and by what they take since."""

from collections.abc import Sequence

from blockdraft_verifier.engine.acceptance import LEARNING_RATE

# The last ~5 drafts decide.
TIME_LEARNING_RATE = 0.2


class DraftCosts:
    """Seconds of a draft step by sequences and tokens, and of the trip to the drafter.

    Between one token and a whole block the seconds rise evenly: a drafter that drafts token by
    token makes a pass for each, one that drafts blocks takes as long for either.
    """

    def __init__(
        self,
        block_size: int = 1,
        step_seconds: Sequence[float] = (),
        shortest_step_seconds: Sequence[float] = (),
    ) -> None:
        """Use the drafter's own measurements, for batches of 1, 2, 4, ... sequences."""
        self._longest = block_size - 1
        self._whole = list(step_seconds)
        self._by_token = [0.0] * len(self._whole)
        if block_size > 2:
            for index, shortest in enumerate(shortest_step_seconds[: len(self._whole)]):
                more = max(0.0, self._whole[index] - shortest)
                self._by_token[index] = more / (self._longest - 1)
        self._transport = 0.0

    def milliseconds(self) -> dict[str, object]:
        """Return what is known now, for the person who asks."""
        return {
            "draft_by_doubling_rows": [round(1e3 * seconds, 3) for seconds in self._whole],
            "draft_token_by_doubling_rows": [round(1e3 * each, 3) for each in self._by_token],
            "transport": round(1e3 * self._transport, 3),
        }

    def observe_transport(self, seconds: float) -> None:
        """Learn what waiting for the drafter costs beyond its own computation."""
        self._transport += LEARNING_RATE * (seconds - self._transport)

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Learn what computing `length` tokens for each of `rows` sequences together took."""
        if self._whole:
            error = seconds - self._computed(rows, length)
            self._whole[self._index(rows)] += TIME_LEARNING_RATE * error

    def seconds(self, rows: int, length: int | float) -> float:
        """Return the seconds of proposals for `rows` sequences, transport included."""
        if not length or not self._whole:
            return 0.0
        return self._computed(rows, length) + self._transport

    def _computed(self, rows: int, length: int | float) -> float:
        index = self._index(rows)
        left_out = max(0.0, self._longest - length)
        return max(0.0, self._whole[index] - left_out * self._by_token[index])

    def _index(self, rows: int) -> int:
        return min((rows - 1).bit_length(), len(self._whole) - 1)
