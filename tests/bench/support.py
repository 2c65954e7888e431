"""A tiny target with a drafter that knows the completions, right as often as it is told to be."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from tests.fakes.drafting import ScriptedMethod
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_bench.completions import CompletionRecord
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.samples import Answered, Limits
from blockdraft_bench.prompts import PromptSet, SamplePrompt
from blockdraft_drafter.service import LoadedMethod
from blockdraft_drafter.session import SlotPool
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.scheduling.sequence import GenerationRequest

CONFIG = tiny_config()
FINGERPRINT = "0123456789abcdef"
LAYER_IDS = (0, 2)
BLOCK_SIZE = 4
DRAFT_LENGTH = BLOCK_SIZE - 1
ENGINE = EngineSettings(
    page_size=4,
    num_pages=96,
    scheduler=SchedulerSettings(max_sequences=2, max_step_tokens=16, max_context_tokens=128),
    draft_policy="fixed",
    prompt_lookup=False,
)
# Prompts whose completions never share a position, so that the position tells which one it is.
PROMPTS = PromptSet(
    "tiny",
    (
        SamplePrompt("short", tuple(range(40, 45))),
        SamplePrompt("long", tuple(range(60, 120))),
    ),
)
# The token after the prompt, then four whole blocks.
MAX_TOKENS = 1 + 4 * BLOCK_SIZE
LIMITS = Limits(MAX_TOKENS, frozenset(), seed=7)

# How many of the tokens drafted after this offset of a completion are to be right.
Right = Callable[[int], int]


def tiny_decoder() -> Decoder:
    return Decoder(CONFIG, dtype=jnp.float32, rngs=nnx.Rngs(0))


def write_target(directory: Path, num_layers: int = 2) -> None:
    decoder = Decoder(tiny_config(num_layers=num_layers), dtype=jnp.float32, rngs=nnx.Rngs(0))
    write_hf_checkpoint(decoder, directory)


@dataclass
class ScriptedPair:
    """A decoder whose drafter is right as often as `script` says."""

    decoder: InProcessDecoder
    method: ScriptedMethod

    def script(
        self,
        right: Right,
        prompts: PromptSet = PROMPTS,
        limits: Limits = LIMITS,
    ) -> list[CompletionRecord]:
        """Draft so many right tokens after each offset of a completion; return the completions."""
        requests = [
            replace(limits.request(prompts.dataset, prompt), max_draft_tokens=0)
            for prompt in prompts.prompts
        ]
        found: dict[int, CompletionRecord] = {}
        self.decoder.decode(requests, found.__setitem__)
        known = {
            len(request.prompt) + offset: (index, offset)
            for index, request in enumerate(requests)
            for offset in range(len(found[index].token_ids))
        }
        assert len(known) == sum(len(completion.token_ids) for completion in found.values())

        def draft(position: int, anchor: int, length: int) -> list[int]:
            if not length:
                return []
            index, offset = known[position]
            tokens = found[index].token_ids
            assert tokens[offset] == anchor
            # Past the end of the completion nothing is known; a stop token was reached before.
            following = [*tokens[offset + 1 : offset + 1 + length], *[0] * length][:length]
            good = right(position - len(requests[index].prompt))
            return [*following[:good], *((token + 1) % 256 for token in following[good:])]

        self.method.draft = draft
        return [found[index] for index in range(len(requests))]


def scripted_pair(config: EngineSettings = ENGINE) -> ScriptedPair:
    method = ScriptedMethod(
        lambda position, anchor, length: [],
        layer_ids=LAYER_IDS,
        hidden_size=CONFIG.hidden_size,
        vocab_size=CONFIG.vocab_size,
        block_size=BLOCK_SIZE,
        max_sequences=2,
        # As in measurements: a step of a prompt fits one request.
        max_feature_rows=32,
    )
    drafter = LoadedMethod(method, SlotPool(2), FINGERPRINT)
    checkpoint = Checkpoint(CONFIG, FINGERPRINT, Path("tiny"))
    decoder = InProcessDecoder(tiny_decoder(), checkpoint, drafter, config)
    decoder.warm_up()
    return ScriptedPair(decoder, method)


# One completion at a time, in as few shapes as that takes.
ALONE = replace(
    ENGINE,
    scheduler=SchedulerSettings(max_sequences=1, max_step_tokens=8, max_context_tokens=128),
)


def decoded_answer(
    ttft: float,
    decode: float,
    tokens: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
) -> CompletionRecord:
    return CompletionRecord(tokens, steps, False, ttft, decode)


def decoded_set(*samples: dict[str, CompletionRecord], temperature: float = 0.0) -> Answered:
    """Return samples s0, s1, ... with these completions by method."""
    requests = tuple(GenerationRequest(f"s{index}", (1, 2)) for index in range(len(samples)))
    completions = {method: [each[method] for each in samples] for method in samples[0]}
    return Answered("hand", temperature, requests, completions)


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
