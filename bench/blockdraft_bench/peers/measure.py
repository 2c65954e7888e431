"""Measuring peers: every prompt through every decoder, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from blockdraft_bench.common.line_store import digest
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.peers.answers import Limits, PeerDecoder, TimedAnswer, Variant
from blockdraft_bench.peers.store import PeerKey, PeerStore

# Of the untimed answer each decoder gives first: allocations and compilation are not its speed.
WARM_UP_TOKENS = 8


def measure_peers(
    decoders: Sequence[PeerDecoder],
    prompt_sets: Sequence[PromptSet],
    limits: Limits,
    store: PeerStore,
    on_answer: Callable[[], None] = lambda: None,
) -> dict[Variant, list[TimedAnswer]]:
    """Decode every prompt with every decoder.

    All decoders answer a prompt before any answers the next, so that a disturbance of the machine
    meets all of them; who is first changes from prompt to prompt.

    Args:
        decoders: Loaded and ready.
        prompt_sets: Prompts by dataset.
        limits: Where answers end.
        store: Where answers are kept; what it holds is not decoded again.
        on_answer: Called for every answer, also for those the store holds.

    Returns:
        The answers of each, in the order of the prompts.
    """
    answers: dict[Variant, list[TimedAnswer]] = {decoder.variant: [] for decoder in decoders}
    warm: set[Variant] = set()
    prompts = [(group.dataset, prompt) for group in prompt_sets for prompt in group.prompts]
    for index, (dataset, prompt) in enumerate(prompts):
        first = index % len(decoders)
        for decoder in (*decoders[first:], *decoders[:first]):
            variant = decoder.variant
            key = PeerKey(dataset, prompt.sample_id, digest(prompt.token_ids), variant)
            answer = store.get(key)
            if answer is None:
                if variant not in warm:
                    short = replace(limits, max_tokens=min(WARM_UP_TOKENS, limits.max_tokens))
                    decoder.decode(prompt.token_ids, short)
                    warm.add(variant)
                answer = decoder.decode(prompt.token_ids, limits)
                store.add(key, answer)
            answers[variant].append(answer)
            on_answer()
    return answers
