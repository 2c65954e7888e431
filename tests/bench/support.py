"""A tiny target, completions by hand, and a program that answers like a peer."""

import sys
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.samples import Answered
from blockdraft_models.decoder.model import Decoder


def tiny_decoder() -> Decoder:
    return Decoder(tiny_config(num_layers=2), dtype=jnp.float32, rngs=nnx.Rngs(0))


def write_target(directory: Path) -> None:
    write_hf_checkpoint(tiny_decoder(), directory)


def decoded_answer(
    seconds: float, tokens: tuple[int, ...], *steps: tuple[int, int]
) -> CompletionRecord:
    """Return a completion from the drafted and accepted tokens of each of its verifications."""
    longest = max((drafted for drafted, _ in steps), default=0)
    places = range(1, longest + 1)
    return CompletionRecord(
        tokens,
        seconds,
        verifications=len(steps),
        drafted_per_position=tuple(sum(d >= place for d, _ in steps) for place in places),
        accepted_per_position=tuple(sum(a >= place for _, a in steps) for place in places),
    )


def decoded_set(*samples: dict[str, CompletionRecord], temperature: float = 0.0) -> Answered:
    """Return samples s0, s1, ... with these completions by method."""
    ids = tuple(f"s{index}" for index in range(len(samples)))
    completions = {method: [each[method] for each in samples] for method in samples[0]}
    return Answered("hand", temperature, ids, completions)


# A program that can be asked like a peer, and answers at once.
PEER = f"""#!{sys.executable}
import json, sys
print(json.dumps({{"fake": "1.0"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["prompt"] == [13]:
        sys.exit("unlucky")
    tokens = [100 + i + asked.get("prompt_lookup_tokens", 0) for i in range(asked["max_tokens"])]
    # Two tokens at a time.
    seconds = [0.25 + 0.5 * (i // 2) for i in range(len(tokens))]
    print(json.dumps({{"tokens": tokens, "seconds": seconds}}), flush=True)
"""


def write_fake_peer(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PEER, encoding="utf-8")
    path.chmod(0o755)
    return path
