"""Log probabilities of a prompt, against float64, beside drafts and under preemption."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import (
    CONFIG,
    Outcome,
    decode,
    link_to,
    make_engine,
    random_requests,
)

from blockdraft_models.decoder.model import Decoder
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest

TOP = 3


def scored(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Return the requests, every second one of which wants to know its prompt's."""
    return [
        replace(request, prompt_log_probs=TOP) if index % 2 else request
        for index, request in enumerate(requests)
    ]


def check(target: ReferenceDecoder, request: GenerationRequest, outcome: Outcome) -> None:
    first, *later = outcome.events
    assert not any(event.prompt_log_probs for event in later)
    if request.prompt_log_probs is None:
        assert not first.prompt_log_probs
        return
    logits = target.logits(list(request.prompt))[:-1]
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert len(first.prompt_log_probs) == len(request.prompt) - 1
    for token, line, found in zip(
        request.prompt[1:], expected, first.prompt_log_probs, strict=True
    ):
        assert found.chosen.token_id == token
        assert found.chosen.log_prob == pytest.approx(line[token], abs=1e-3)
        top = [rival.log_prob for rival in found.alternatives]
        assert top == pytest.approx(np.sort(line)[::-1][:TOP], abs=1e-3)
        assert found.alternatives[0].token_id == int(np.argmax(line))


# Few pages, so that sequences are preempted while their prompts are computed.
@pytest.mark.parametrize("pages", [None, 24])
def test_every_token_of_a_prompt_has_one(
    decoder: Decoder, plain: Engine, pages: int | None
) -> None:
    target = ReferenceDecoder(CONFIG, params_from_decoder(decoder))
    requests = random_requests(31, count=12)
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    wanted = scored(requests)
    drafting = make_engine(decoder, link_to(oracle(requests, expected, 0.8)), pages=pages)
    # Twice: what the prefix cache holds is computed all the same.
    for engine in (plain, drafting, drafting):
        outcomes = decode(engine, wanted)
        assert [outcome.tokens for outcome in outcomes] == expected
        for request, outcome in zip(wanted, outcomes, strict=True):
            check(target, request, outcome)


def test_a_completion_that_goes_on_does_not_tell_them_again(plain: Engine) -> None:
    request = GenerationRequest("r", (1, 2, 3), emitted=(4,), prompt_log_probs=TOP)
    [outcome] = decode(plain, [request])
    assert not any(event.prompt_log_probs for event in outcome.events)
