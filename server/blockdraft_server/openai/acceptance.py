"""How many drafted tokens completions accepted, as vLLM and SGLang report it in an answer."""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

from blockdraft_protos.v1 import inference_pb2


def acceptance(usages: Sequence[inference_pb2.Usage]) -> dict[str, Any]:
    """Return vLLM's `metrics.speculative_decoding` and SGLang's `sglext.spec_tokens_details`.

    A histogram has, for each number of tokens from 0, how many steps accepted just so many. vLLM's
    steps are those that verified drafted tokens; SGLang's are all after the prompt, so that its
    accept length is tokens per step.
    """
    drafted = _by_position([usage.drafted_per_position for usage in usages])
    accepted = _by_position([usage.accepted_per_position for usage in usages])
    drafts, depth = (drafted[0], len(drafted)) if drafted else (0, 0)
    # Steps that accepted so many tokens or more.
    at_least = [drafts, *accepted, *[0] * (depth - len(accepted) + 1)]
    histogram = [more - fewer for more, fewer in pairwise(at_least)]
    steps = sum(usage.verification_steps for usage in usages)
    drafted_count, accepted_count = sum(drafted), sum(accepted)
    rate = accepted_count / drafted_count if drafted_count else 0.0
    vllm = {
        "mean_acceptance_length": 1 + accepted_count / drafts if drafts else 1.0,
        "draft_acceptance_rate": rate,
        "acceptance_histogram": histogram,
        "num_spec_steps": drafts,
        "num_accepted_draft_tokens": accepted_count,
        "num_draft_tokens": drafted_count,
        "num_spec_tokens": depth,
    }
    sglang = {
        "spec_accept_rate": rate,
        "spec_accept_length": 1 + accepted_count / steps if steps else 1.0,
        "spec_verify_ct": steps,
        "spec_num_correct_drafts": accepted_count,
        "spec_num_proposed_drafts": drafted_count,
        "spec_correct_drafts_histogram": [histogram[0] + steps - drafts, *histogram[1:]],
    }
    return {
        "metrics": {"speculative_decoding": vllm},
        "sglext": {"spec_tokens_details": sglang},
    }


def _by_position(counts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(position) for position in zip_longest(*counts, fillvalue=0)]
