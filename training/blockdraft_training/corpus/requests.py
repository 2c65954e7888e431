"""What the target is asked for each row, and how the answer is sampled.

Sampling is a function of the corpus' seed and the row's id alone: a row can be made again by
itself, and neither order nor interruptions change it.
"""

import hashlib
from collections.abc import Sequence

from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_training.corpus.conversations import Conversation
from blockdraft_training.corpus.settings import CorpusSettings
from blockdraft_training.generation.generator import Request

_HASH_BYTES = 8
# Whole numbers of 53 bits survive every JSON reader.
_DROPPED_BITS = 8 * _HASH_BYTES - 53


def answer_requests(
    settings: CorpusSettings, tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> tuple[list[Request], int]:
    """Return what to ask for, up to the limit, and how many prompts were too long."""
    requests, too_long = list[Request](), 0
    for conversation in conversations:
        if len(requests) == settings.limit:
            break
        ids = tokenizer.encode_chat(conversation.messages)
        if len(ids) > settings.max_prompt_tokens:
            too_long += 1
            continue
        name = conversation.row_id
        greedy = is_greedy(settings.seed, name, settings.greedy_share)
        temperature = 0.0 if greedy else settings.temperature
        seed = answer_seed(settings.seed, name)
        requests.append(Request(name, tuple(ids), temperature, seed))
    return requests, too_long


def answer_seed(seed: int, row_id: str) -> int:
    """Return the seed of one row's noise."""
    return _hash(seed, "noise", row_id) >> _DROPPED_BITS


def is_greedy(seed: int, row_id: str, greedy_share: float) -> bool:
    """Return whether one row is answered greedily; true for `greedy_share` of all rows."""
    return _hash(seed, "kind", row_id) < greedy_share * (1 << 8 * _HASH_BYTES)


def _hash(seed: int, purpose: str, row_id: str) -> int:
    text = f"{seed}\0{purpose}\0{row_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")
