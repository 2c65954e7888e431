"""The engine with int8 weights decodes what those weights decode, drafted or not."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.command_lines import parse
from tests.models.quantized import dequantized_params, int8_decoder
from tests.models.reference_decoder import ReferenceDecoder
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.engine.test_loop import oracle
from tests.verifier.support import (
    CONFIG,
    TINY_ENGINE,
    decode,
    link_to,
    make_engine,
    random_requests,
    tiny_decoder,
)

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_runtime.settings.verifier import SchedulerSettings
from blockdraft_verifier.command import CONFIGURATION
from blockdraft_verifier.loading import load_target

# Few shapes to compile.
SMALL = SchedulerSettings(max_sequences=2, max_step_tokens=8, max_context_tokens=64)


@pytest.mark.parametrize("scanned", [False, True])
def test_drafted_and_plain_output_is_that_of_the_reference(
    tmp_path: Path, *, scanned: bool
) -> None:
    decoder = int8_decoder(tiny_decoder(), tmp_path)
    reference = ReferenceDecoder(CONFIG, dequantized_params(decoder))
    requests = [replace(r, sampling=Sampling()) for r in random_requests(1, 3, 10)]
    expected = []
    for request in requests:
        tokens = list(request.prompt)
        for _ in range(request.max_output_tokens):
            tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
        expected.append(tokens[len(request.prompt) :])
    drafting = make_engine(
        ScannedDecoder(decoder) if scanned else decoder,
        link_to(oracle(requests, expected, 0.7)),
        replace(TINY_ENGINE, scheduler=SMALL),
    )
    drafted = decode(drafting, requests)
    plain = decode(drafting, [replace(request, max_draft_tokens=0) for request in requests])
    for outcomes in (drafted, plain):
        assert [outcome.tokens for outcome in outcomes] == expected
    accepted = sum(event.accepted for outcome in drafted for event in outcome.events)
    refused = sum(event.drafted for outcome in drafted for event in outcome.events) - accepted
    assert accepted > 0
    assert refused > 0
    assert not any(event.drafted for outcome in plain for event in outcome.events)


def test_the_flag_reaches_the_weights(tmp_path: Path) -> None:
    write_hf_checkpoint(tiny_decoder(), tmp_path)
    found = {}
    for flags in ((), ("--weights", "stored"), ("--weights", "int8")):
        small = ("--num-pages", "8", "--max-model-len", "64", "--dtype", "float32")
        settings = CONFIGURATION.resolve(
            parse(CONFIGURATION, f"--target={tmp_path}", *small, *flags), {}
        )
        target = load_target(settings)
        types = {weight.dtype.name for weight in jax.tree.leaves(target.runner._weights)}
        computation = target.computation.fingerprint
        found[flags] = (settings.engine.weights, types, computation, target.checkpoint.fingerprint)
    plain, stated, int8 = found.values()
    assert plain == stated
    assert plain[:2] == ("stored", {"float32"})
    assert int8[:2] == ("int8", {"float32", "int8"})
    # A drafter made for the one is accepted by the other, but neither goes on where the other was.
    assert int8[2] != plain[2]
    assert int8[3] == plain[3]
