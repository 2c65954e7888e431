"""Log probabilities of a step as messages, row by row."""

from collections.abc import Sequence

import jax

from blockdraft_protos.v1.inference_pb2 import TokenLogProb, TokenLogProbs
from blockdraft_verifier.device.accept import LogProbs
from blockdraft_verifier.device.step import StepOutputs
from blockdraft_verifier.scheduling.row import Row, RowResult


def split_log_probs(
    rows: Sequence[Row], results: Sequence[RowResult], outputs: StepOutputs
) -> tuple[list[list[TokenLogProbs]], list[list[TokenLogProbs]]]:
    """Return each row's log probabilities, of gained tokens and of the prompt's, if wanted."""
    gained: list[list[TokenLogProbs]] = [[] for _ in rows]
    prompt: list[list[TokenLogProbs]] = [[] for _ in rows]
    if not any(row.scored or row.sequence.request.log_probs is not None for row in rows):
        return gained, prompt
    arrays = jax.device_get(outputs.log_probs)
    first = 0
    for index, (row, result) in enumerate(zip(rows, results, strict=True)):
        request = row.sequence.request
        if request.log_probs is not None:
            chosen = first + row.choice_count - row.draft_count - 1
            tokens = (*row.drafted[: result.accepted], result.next_token)
            gained[index] = _entries(arrays, chosen, tokens, request.log_probs)
        if row.scored:
            count = request.prompt_log_probs or 0
            prompt[index] = _entries(arrays, first, row.scored_tokens, count)
        first += row.choice_count
    return gained, prompt


def _entries(
    arrays: LogProbs, first: int, token_ids: Sequence[int], count: int
) -> list[TokenLogProbs]:
    """Return the log probabilities of tokens, chosen one after another from choice `first` on."""
    choices = slice(first, first + len(token_ids))
    chosen, ids = arrays.chosen[choices].tolist(), arrays.top_ids[choices, :count].tolist()
    top = arrays.top[choices, :count].tolist()
    return [
        TokenLogProbs(
            chosen=TokenLogProb(token_id=token_id, log_prob=log_prob),
            alternatives=[
                TokenLogProb(token_id=rival, log_prob=rival_log_prob)
                for rival, rival_log_prob in zip(rivals, log_probs, strict=True)
            ],
        )
        for token_id, log_prob, rivals, log_probs in zip(token_ids, chosen, ids, top, strict=True)
    ]
