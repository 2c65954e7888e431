"""How each row of a corpus is sampled: a function of the corpus' seed and the row's id alone.

So a row can be made again by itself, and neither order nor interruptions change it.
"""

import hashlib

_HASH_BYTES = 8
# Whole numbers of 53 bits survive every JSON reader.
_DROPPED_BITS = 8 * _HASH_BYTES - 53


def answer_seed(seed: int, row_id: str) -> int:
    """Return the seed of one row's noise."""
    return _hash(seed, "noise", row_id) >> _DROPPED_BITS


def is_greedy(seed: int, row_id: str, greedy_share: float) -> bool:
    """Return whether one row is answered greedily; true for `greedy_share` of all rows."""
    return _hash(seed, "kind", row_id) < greedy_share * (1 << 8 * _HASH_BYTES)


def _hash(seed: int, purpose: str, row_id: str) -> int:
    text = f"{seed}\0{purpose}\0{row_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")
