"""From a prompt to what the engine is asked, with a seed that no other sample changes."""

import hashlib

from blockdraft_bench.common.prompts import Prompt
from blockdraft_verifier.scheduling.sequence import GenerationRequest, Sampling


def sample_request(
    dataset: str,
    prompt: Prompt,
    temperature: float,
    *,
    max_tokens: int,
    stop_token_ids: frozenset[int],
    seed: int,
) -> GenerationRequest:
    """Return the request for one sample's answer.

    Args:
        dataset: The sample's dataset.
        prompt: Its prompt.
        temperature: Of the target; 0 is greedy.
        max_tokens: Most tokens of the answer.
        stop_token_ids: Tokens that end it.
        seed: Of the whole measurement. A sample's own depends on this, its dataset and its id:
            more samples change none of the answers.
    """
    name = f"{seed}/{dataset}/{prompt.sample_id}"
    own_seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
    return GenerationRequest(
        prompt.sample_id,
        prompt.token_ids,
        sampling=Sampling(temperature=temperature, seed=own_seed),
        max_output_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
    )
