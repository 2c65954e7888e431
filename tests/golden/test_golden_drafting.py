"""Drafts and acceptance of public drafters, against an implementation in PyTorch.

The checkpoints go through the loaders, the engine of the verifier and the session of the drafter
that serve; only the wire between the two is left out.
"""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.drafting import SessionLink, SessionTransport
from tests.verifier.support import Outcome, finish

from blockdraft_drafter.app import load_method
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_protos.v1 import drafter_pb2 as pb
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest

GOLDEN = Path(__file__).parent
# EAGLE-3 checkpoints do not say how far to draft; DFlash checkpoints do.
BLOCK_SIZES = {"dflash": 6, "dflash2": 6, "dspark": 6, "eagle3": 5, "eagle31": 5}
CONTEXT_TOKENS, STEP_TOKENS = 96, 8
ENGINE = EngineSettings(
    scheduler=SchedulerSettings(1, STEP_TOKENS, CONTEXT_TOKENS),
    num_pages=8,
    dtype="float32",
    draft_policy="fixed",
    prompt_lookup=False,
)


@pytest.mark.parametrize("name", BLOCK_SIZES)
def test_drafts_and_acceptance_are_those_of_the_published_algorithm(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = json.loads((GOLDEN / "drafters" / f"{name}.json").read_text())
    block_size = BLOCK_SIZES[name]
    drafts: list[list[int]] = []
    send, receive = SessionTransport.send, SessionTransport.receive

    def tell(self: SessionTransport, request: pb.DraftRequest) -> None:
        # They are no part of the published algorithms.
        for each in request.sequences:
            each.ClearField("recycled")
        send(self, request)

    def listen(self: SessionTransport, timeout_seconds: float) -> pb.DraftResponse | None:
        response = receive(self, timeout_seconds)
        if response is not None:
            # Appending the prompt alone is answered with an empty draft.
            drafts.extend(list(each.token_ids) for each in response.drafts if each.token_ids)
        return response

    monkeypatch.setattr(SessionTransport, "send", tell)
    monkeypatch.setattr(SessionTransport, "receive", listen)
    engine = load(str(GOLDEN / "targets" / golden["target"]), str(GOLDEN / "drafters" / name))
    for sequence in golden["sequences"]:
        rounds = len(sequence["drafts"])
        assert rounds >= 10
        drafts.clear()
        outcome = outcome_of(engine, sequence, extra=2 * block_size)
        assert drafts[:rounds] == sequence["drafts"]
        # The first event follows the prompt: nothing was verified for it.
        gained = [event.accepted + 1 for event in outcome.events[1 : rounds + 1]]
        assert gained == sequence["gained"]
        assert outcome.tokens[: len(sequence["tokens"])] == sequence["tokens"]
    assert {gained for s in golden["sequences"] for gained in s["gained"]} >= {1, 2, block_size}


def load(target: str, drafter: str) -> Engine:
    drafting = load_method(
        DrafterSettings(
            target=target,
            drafter=drafter,
            max_sequences=1,
            max_model_len=CONTEXT_TOKENS,
            max_feature_rows=STEP_TOKENS,
            block_size=BLOCK_SIZES["eagle3"],
            dtype="float32",
        )
    )
    decoder, checkpoint = load_decoder(resolve_target(target), dtype=jnp.float32)
    link, metrics = SessionLink(drafting.method), VerifierMetrics(CollectorRegistry())
    runner = ModelRunner(decoder, ENGINE)
    engine = Engine(runner, ENGINE, link, checkpoint.config.vocab_size, metrics)
    engine.warm_up()
    return engine


def outcome_of(engine: Engine, sequence: dict[str, Any], extra: int) -> Outcome:
    """Decode so far that no draft of the golden rounds is cut short by the end."""
    request = GenerationRequest(
        "golden",
        tuple(sequence["prompt"]),
        max_output_tokens=len(sequence["tokens"]) + extra,
    )
    outcome = Outcome()
    engine.submit(request, outcome)
    finish(engine)
    return outcome
