"""Requests of several adapters in one step: each gets what its adapter, merged in, would say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from tests.models.adapters import merged, write_adapter
from tests.models.quantized import int8_decoder
from tests.models.reference_decoder import ReferenceDecoder, params_from_decoder
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

from blockdraft_models.decoder.linear import LowRank
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.sampling_options import Sampling
from blockdraft_models.weights import adapters
from blockdraft_models.weights.adapters import load_adapters
from blockdraft_runtime.settings.verifier import EngineSettings, VerifierSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.self_test import self_test


class OfAnyRow(LowRank):
    """Adapters of which each row gets all that the step has."""

    def __call__(
        self, x: Float[Array, "rows in"], y: Float[Array, "rows out"]
    ) -> Float[Array, "rows out"]:
        assert self.columns is not None
        low = self.down(x)
        return y + self.up(jnp.where(self.columns.any(axis=0), low, jnp.zeros_like(low)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, rank in enumerate((3, 8), start=1):
        write_adapter(tmp_path / "adapters" / f"adapter-{number}", CONFIG, rank, seed=number)
    return tmp_path / "adapters"


def adapted(folder: Path, decoder: Decoder | None = None) -> Decoder:
    decoder = decoder or tiny_decoder()
    load_adapters(decoder, folder)
    return decoder


def mixed(seed: int) -> list[GenerationRequest]:
    """Return greedy and sampled requests of every adapter and of none, whose prompts differ."""
    return [replace(r, adapter=i % 3) for i, r in enumerate(random_requests(seed, 6, 12))]


@pytest.mark.parametrize("wrap", [lambda decoder: decoder, ScannedDecoder], ids=["", "scanned"])
def test_greedy_output_is_that_of_merged_weights(
    folder: Path, wrap: Callable[[Decoder], Decoder]
) -> None:
    params = params_from_decoder(tiny_decoder())
    targets = [ReferenceDecoder(CONFIG, params)]
    for number in (1, 2):
        weights = merged(params, folder / f"adapter-{number}", CONFIG)
        targets.append(ReferenceDecoder(CONFIG, weights))
    requests = [replace(request, sampling=Sampling()) for request in mixed(0)]
    expected = []
    for request in requests:
        tokens = list(request.prompt)
        for _ in range(request.max_output_tokens):
            tokens.append(int(np.argmax(targets[request.adapter].logits(tokens)[-1])))
        expected.append(tokens[len(request.prompt) :])
    engine = make_engine(wrap(adapted(folder)), link_to(oracle(requests, expected, 0.7)))
    outcomes = decode(engine, requests)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert sum(event.accepted for outcome in outcomes for event in outcome.events)


@pytest.mark.parametrize("weights", ["float", "int8"])
def test_no_request_depends_on_drafts_or_on_others(
    folder: Path, tmp_path: Path, weights: str
) -> None:
    base = None if weights == "float" else int8_decoder(tiny_decoder(), tmp_path / "target")
    decoder, requests = adapted(folder, base), mixed(1)
    plain = make_engine(decoder)
    alone = [decode(plain, [request])[0].tokens for request in requests]
    assert [outcome.tokens for outcome in decode(plain, requests)] == alone
    # Pages for two of them: the others are preempted and computed again.
    drafting = make_engine(decoder, link_to(oracle(requests, alone, 0.7)), pages=28)
    assert [outcome.tokens for outcome in decode(drafting, requests)] == alone
    emitted = [replace(r, emitted=tuple(a[:5])) for r, a in zip(requests, alone, strict=True)]
    assert [outcome.tokens for outcome in decode(plain, emitted)] == [a[5:] for a in alone]


def test_prefixes_are_shared_within_an_adapter_only(folder: Path) -> None:
    engine = make_engine(adapted(folder))
    request = GenerationRequest("", tuple(range(20)), max_output_tokens=4)
    cached = []
    for adapter in (1, 2, 0, 1, 2, 0):
        outcome = decode(engine, [replace(request, adapter=adapter)])[0]
        cached.append((outcome.usage.cached_prompt_tokens, outcome.tokens))
    assert [count for count, _ in cached] == [0, 0, 0, 16, 16, 16]
    texts = [tokens for _, tokens in cached]
    assert texts[:3] == texts[3:]
    assert texts[0] != texts[1] != texts[2] != texts[0]


def test_the_self_test_finds_a_step_whose_rows_affect_each_others_adapters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(TINY_ENGINE, scheduler=replace(TINY_ENGINE.scheduler, max_step_tokens=8))
    runner = ModelRunner(adapted(folder), small)
    runner.warm_up(NO_FEATURES, 1)
    assert self_test(runner).exact

    monkeypatch.setattr(adapters, "LowRank", OfAnyRow)
    runner = ModelRunner(adapted(folder), small)
    runner.warm_up(NO_FEATURES, 1)
    assert not self_test(runner).exact


def test_targets_in_pytorch_take_none() -> None:
    engine = EngineSettings(implementation="torch")
    with pytest.raises(ValueError, match="--adapters and --implementation torch exclude"):
        VerifierSettings(adapters=Path("adapters"), engine=engine)
