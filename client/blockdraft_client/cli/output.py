"""Output of commands: JSON for programs, a line of figures for people, and exit codes."""

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING

OK = 0
FAILED = 1
"""The server, or the connection to it, failed."""
USAGE = 2
"""The command line, or a file it names, is wrong."""
INTERRUPTED = 130


class UsageError(Exception):
    """The command line, or a file it names, is wrong."""


class CommandFailedError(Exception):
    """The command could not do its work; the message says why."""


if TYPE_CHECKING:
    # Imported by every command, also by those that need no protobuf.
    from blockdraft_client.results import Completion, TokenLogProb, TokenLogProbs
    from blockdraft_client.usage import Usage

_USAGE = (
    *("prompt_tokens", "cached_prompt_tokens", "output_tokens", "verification_steps"),
    *(
        "drafted_tokens",
        "accepted_tokens",
        "prompt_lookup_drafted_tokens",
        "prompt_lookup_accepted_tokens",
        "forced_tokens",
        "denoising_steps",
    ),
    *("acceptance_length", "acceptance_rate", "queue_seconds", "prefill_seconds"),
    *("decode_seconds", "time_to_first_token_seconds", "tokens_per_second"),
)


def print_json(value: object) -> None:
    """Print one JSON value as one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def completion_json(completion: "Completion") -> dict[str, object]:
    """Return a completion as a JSON object."""
    value: dict[str, object] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "token_sources": list(completion.token_sources),
        "finish_reason": completion.finish_reason,
        "model": completion.model,
        "request_id": completion.request_id,
        "usage": usage_json(completion.usage),
    }
    if completion.log_probs:
        value["log_probs"] = [_log_probs_json(item) for item in completion.log_probs]
    if completion.prompt_log_probs:
        value["prompt_log_probs"] = [_log_probs_json(item) for item in completion.prompt_log_probs]
    return value


def usage_json(usage: "Usage") -> dict[str, object]:
    """Return a request's usage as a JSON object; step times are sums over its steps."""
    return {name: getattr(usage, name) for name in _USAGE} | {
        "acceptance_per_position": list(usage.acceptance_per_position),
        "step_seconds": dataclasses.asdict(usage.step_seconds),
    }


def _log_probs_json(item: "TokenLogProbs") -> dict[str, object]:
    alternatives = [_log_prob_json(rival) for rival in item.alternatives]
    return {**_log_prob_json(item.chosen), "alternatives": alternatives}


def _log_prob_json(item: "TokenLogProb") -> dict[str, object]:
    return {
        "token_id": item.token_id,
        "token": item.token.decode("utf-8", errors="replace"),
        # JSON has no infinity: the log probability of an impossible token is null.
        "log_prob": item.log_prob if math.isfinite(item.log_prob) else None,
    }


def stats_line(usage: "Usage") -> str:
    """Return the figures of one completion in one line."""
    parts = [f"{usage.output_tokens} tokens"]
    if usage.denoising_steps:
        parts[0] += f" in {usage.denoising_steps} denoising steps"
    if usage.tokens_per_second is not None:
        parts.append(f"{usage.tokens_per_second:.1f} tokens/s")
    if usage.acceptance_length is not None:
        parts.append(f"τ {usage.acceptance_length:.2f}")
    if usage.verification_steps:
        parts.append(f"{usage.accepted_tokens} of {usage.drafted_tokens} drafted tokens accepted")
        if drafted := usage.prompt_lookup_drafted_tokens:
            accepted = usage.prompt_lookup_accepted_tokens
            parts[-1] += f" ({accepted} of {drafted} by prompt lookup)"
    parts.append(f"TTFT {usage.time_to_first_token_seconds:.2f} s")
    return ", ".join(parts)
