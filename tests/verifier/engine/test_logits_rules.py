"""Penalties, biases and masks: the published formulas in float64, and drafted equals plain."""

from dataclasses import replace

import numpy as np
import pytest
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
from tests.verifier.engine.test_loop import oracle
from tests.verifier.logits_reference import VOCAB, noise_at, random_case, reference
from tests.verifier.support import CONFIG, decode, link_to, make_engine

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.sampling_options import NO_RULES
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.token_masks import TokenMasks


def test_the_choice_is_that_of_the_published_formulas(decoder: Decoder, plain: Engine) -> None:
    target = ReferenceDecoder(CONFIG, params_from_decoder(decoder))
    cases = [random_case(seed) for seed in range(40)]
    outcomes = decode(plain, [request for _, request in cases])
    changed = 0
    for (asked, request), outcome in zip(cases, outcomes, strict=True):
        output: list[int] = []
        while len(output) < request.max_output_tokens:
            tokens = [*request.prompt, *output]
            raw = target.logits(tokens)[-1]
            scores = reference(raw, asked, request.prompt, output)
            noise = noise_at(request.sampling, len(tokens))
            output.append(int(np.argmax(scores + noise)))
            changed += output[-1] != int(np.argmax(raw + noise))
            if output[-1] in asked.stops:
                break
        assert outcome.tokens == output, (asked, request)
    assert changed > 100, "hardly any rule decided anything"


@pytest.mark.parametrize(("right", "pages"), [(0.7, None), (0.9, 24)])
def test_drafting_never_changes_the_output(
    decoder: Decoder, plain: Engine, right: float, pages: int | None
) -> None:
    requests = [request for _, request in map(random_case, range(100, 124))]
    expected = [outcome.tokens for outcome in decode(plain, requests)]
    drafting = make_engine(decoder, link_to(oracle(requests, expected, right)), pages=pages)
    outcomes = decode(drafting, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    accepted = sum(sum(outcome.usage.accepted_per_position) for outcome in outcomes)
    assert accepted > 40
    # A replay begins in the middle of the output, which stays output.
    again = [
        replace(request, emitted=tuple(tokens[: len(tokens) // 2]))
        for request, tokens in zip(requests, expected, strict=True)
    ]
    for request, outcome, tokens in zip(again, decode(drafting, again), expected, strict=True):
        assert [*request.emitted, *outcome.tokens] == tokens


def test_requests_without_rules_are_undisturbed_by_those_beside_them(plain: Engine) -> None:
    with_rules = [random_case(seed)[1] for seed in range(200, 206)]
    without = [replace(request, rules=NO_RULES, masks=None) for request in with_rules]
    expected = [decode(plain, [request])[0].tokens for request in without]
    mixed = [one for pair in zip(without, with_rules, strict=True) for one in pair]
    assert [outcome.tokens for outcome in decode(plain, mixed)][::2] == expected


def test_masks_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no token is left"):
        TokenMasks(VOCAB, allowed=(1, 2), bad_words=((1,), (2,)))
    with pytest.raises(ValueError, match="no token is left"):
        TokenMasks(VOCAB, allowed=(1, 2), min_tokens=1, stop_token_ids=(1, 2))
    TokenMasks(VOCAB, allowed=(1, 2), min_tokens=1, stop_token_ids=(1,))


def test_a_bad_word_is_completed_where_nothing_else_is_allowed() -> None:
    masks = TokenMasks(VOCAB, allowed=(1, 2), bad_words=((1, 1), (1, 2), (2, 2)))
    assert masks.along([], [1, 2]) == [0b110, 0b110, 0b010]
