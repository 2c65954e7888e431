"""What a service is asked: prompts of several datasets in turn, checked against the service."""

import itertools
from collections.abc import Sequence

from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.prompts import PromptSet
from blockdraft_bench.engine.samples import Limits
from blockdraft_bench.serve.service import RunningService
from blockdraft_bench.serve.settings import Asked
from blockdraft_client.params import ChatMessage
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_verifier.scheduling.sequence import GenerationRequest

# Words, digits, a script of several bytes a character: tokenizers differ in these.
PROBE = "Is 1234 prime? 素数ですか。"


def pool_of_requests(
    prompt_sets: Sequence[PromptSet], settings: Asked, tokenizer: Tokenizer
) -> list[GenerationRequest]:
    """Return a request for each prompt, the datasets in turn, so that few requests mix them all."""
    limits = Limits(settings.max_tokens, frozenset(tokenizer.eos_token_ids), settings.seed)
    columns = [
        [
            limits.request(prompt_set.dataset, prompt, settings.temperature)
            for prompt in prompt_set.prompts
        ]
        for prompt_set in prompt_sets
    ]
    rows = itertools.zip_longest(*columns)
    return [request for row in rows for request in row if request is not None]


def check_service(
    service: RunningService, tokenizer: Tokenizer, pool: Sequence[GenerationRequest]
) -> None:
    """Refuse a service that the prompts were not made for.

    Raises:
        BenchUsageError: If it reads text differently, or has no room for a prompt and its answer.
    """
    room = service.model.max_context_tokens
    longest = max(len(request.prompt) + request.max_output_tokens for request in pool)
    if longest > room:
        raise BenchUsageError(
            f"the service holds {room} tokens of a prompt and its answer, not {longest}; "
            "lower --max-prompt-tokens or --max-tokens"
        )
    with service.connection.client() as client:
        theirs = client.tokenize([ChatMessage("user", PROBE)]).token_ids
    if theirs != tuple(tokenizer.encode_chat([{"role": "user", "content": PROBE}])):
        raise BenchUsageError("the service has another tokenizer than --target")
