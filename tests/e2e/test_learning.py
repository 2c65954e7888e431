"""A drafter that learns, behind a real engine: what it records, and weights that come and go."""

import asyncio
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.e2e.learning_drafter import Learning, allowed
from tests.e2e.test_fair_share import serving_verifier
from tests.server.support import running_server, settings_for
from tests.verifier.support import CONFIG, Outcome, decode, random_requests, repairs_of

from blockdraft_drafter.learning.comparison import SequenceGain
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_protos.v1 import inference_pb2
from blockdraft_server.keys import digest_of
from blockdraft_verifier.engine.costs import DraftCosts


@pytest.mark.parametrize("learning", ["dflash", "eagle3"], indirect=True)
def test_answers_are_the_same_while_weights_come_and_go(learning: Learning) -> None:
    requests = allowed(random_requests(3, count=6, max_output_tokens=24))
    plain = [replace(request, max_draft_tokens=0) for request in requests]
    expected = [outcome.tokens for outcome in decode(learning.engine(), plain)]
    learning.promoted(1)
    engine = learning.engine()
    outcomes = [Outcome() for _ in requests]
    for request, outcome in zip(requests, outcomes, strict=True):
        engine.submit(request, outcome)
    versions = set()
    steps = 0
    while engine.step():
        steps += 1
        if engine.drafter is not None:
            versions.add(engine.drafter.version)
        if steps == 4:
            learning.poll()
        if steps == 8:
            learning.promoted(2)
            learning.poll()
        if steps == 12:
            learning.store.roll_back("by hand")
            learning.poll()
    assert [outcome.tokens for outcome in outcomes] == expected
    assert repairs_of(engine) == 0
    assert steps > 14
    assert versions >= {1, 2, 3}
    assert learning.serving.message.number == 2
    assert learning.count("version_changes_total", kind="swapped") == 3
    assert learning.count("version") == 2
    verified = learning.count("version_verifications_total", version="2", context="older")
    assert verified > 0


@pytest.mark.parametrize("learning", ["dflash", "eagle3"], indirect=True)
def test_what_is_recorded_is_what_was_said_and_nothing_that_is_excluded(
    learning: Learning,
) -> None:
    requests = allowed(random_requests(5, count=8, max_output_tokens=30), which=0)
    engine = learning.engine()
    outcomes = decode(engine, requests)
    recorded = learning.recorded()
    texts = [
        [*request.prompt, *outcome.tokens][:-1]
        for request, outcome in zip(requests, outcomes, strict=True)
    ]
    expected = {
        tuple(text): request
        for text, request in zip(texts, requests, strict=True)
        if request.recordable and len(text) >= 16
    }
    assert len(expected) > 1
    # Whole, the last features included, each once, and no other.
    assert {tuple(each.token_ids.tolist()) for each in recorded} == set(expected)
    assert len(recorded) == len(expected)
    for each in recorded:
        request = expected[tuple(each.token_ids.tolist())]
        assert each.completion_start == len(request.prompt)
        assert each.temperature == pytest.approx(request.sampling.temperature)
        assert each.target_fingerprint == learning.target.checkpoint.fingerprint
        assert each.features.shape == (len(each.token_ids), CONFIG.hidden_size)
    assert learning.count("training_samples_total", outcome="excluded") == sum(
        not request.recordable for request in requests
    )


def test_sequences_for_which_nothing_is_drafted_are_recorded_too(learning: Learning) -> None:
    requests = allowed(random_requests(5, count=4, max_output_tokens=30))
    drafted = decode(learning.engine(), requests)
    engine = learning.engine()
    # Nothing pays that takes so long.
    engine.lengths._policy = "adaptive"
    assert engine.lengths.costs is not None
    engine.lengths.costs.drafts = DraftCosts(8, [1e3])
    again = decode(engine, requests)
    assert [outcome.tokens for outcome in again] == [outcome.tokens for outcome in drafted]
    recorded = sorted(learning.recorded(), key=lambda each: each.token_ids.tolist())
    assert len(recorded) >= 4
    for one, other in zip(recorded[::2], recorded[1::2], strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.features.view(np.uint16), other.features.view(np.uint16))


@pytest.mark.usefixtures("cold")
def test_weights_that_are_no_numbers_are_refused(learning: Learning) -> None:
    before = learning.method.spec.fingerprint
    number = learning.promoted(1, float("nan"))
    learning.poll()
    assert learning.method.spec.fingerprint == before
    assert learning.store.read(number).state == "rejected"
    assert "not finite" in learning.store.read(number).reason
    assert learning.current == learning.serving.message.number == 1
    assert learning.count("version_changes_total", kind="refused") == 1
    learning.poll()
    assert learning.count("version_changes_total", kind="refused") == 1


@pytest.mark.usefixtures("cold")
def test_a_damaged_store_changes_nothing(learning: Learning) -> None:
    number = learning.promoted(1)
    learning.poll()
    assert learning.serving.message.number == number
    record = learning.store.path(number) / "version.json"
    record.write_text(record.read_text()[: len(record.read_text()) // 2])
    learning.poll()
    assert learning.serving.message.number == 1
    broken = learning.learned(2)
    weights = learning.store.path(broken) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    learning.store.promote(broken)
    learning.poll()
    assert learning.store.read(broken).state == "rejected"
    shutil.rmtree(learning.directory)
    learning.poll()
    assert learning.serving.message.number == 1


@pytest.mark.usefixtures("cold")
def test_it_goes_back_by_itself_when_less_is_accepted(learning: Learning) -> None:
    for _ in range(200):
        learning.serving.ended(1, SequenceGain(40, 20))
        learning.serving.ended(1, SequenceGain(30, 20))
    number = learning.promoted(1)
    learning.poll()
    assert learning.serving.message.number == number
    for _ in range(32):
        learning.serving.ended(number, SequenceGain(24, 20))
        learning.serving.ended(number, SequenceGain(22, 20))
    learning.poll()
    assert learning.serving.message.number == 1
    version = learning.store.read(number)
    assert version.state == "rolled_back"
    assert "fell from 1.750 to 1.150" in version.reason
    assert learning.count("version_changes_total", kind="rolled_back") == 1


@pytest.mark.usefixtures("cold")
def test_nothing_ends_the_looking(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def fails(self: VersionStore) -> None:
        looks.append(1)
        raise ZeroDivisionError

    async def run() -> None:
        task = asyncio.create_task(learning.serving.run())
        while len(looks) < 3:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()

    monkeypatch.setattr("blockdraft_drafter.learning.serving.POLL_SECONDS", 0.0)
    monkeypatch.setattr(VersionStore, "current", fails)
    asyncio.run(run())


async def test_callers_and_tenants_that_are_excluded_leave_no_trace(learning: Learning) -> None:
    engine = learning.engine()
    engine.start()
    keys = ["open", f"acme sha256:{digest_of('closed').hex()} no-learning"]
    asked = {("open", False): 1, ("open", True): 2, ("closed", False): 3}
    try:
        async with (
            serving_verifier(engine) as address,
            running_server(settings_for(address), api_keys=keys) as server,
        ):
            for (key, disabled), token in asked.items():
                request = inference_pb2.GenerateRequest(
                    prompt=inference_pb2.Prompt(
                        token_ids=inference_pb2.TokenIds(values=[token] * 20)
                    ),
                    sampling=inference_pb2.SamplingOptions(max_output_tokens=12, ignore_eos=True),
                    speculation=inference_pb2.SpeculationOptions(learning_disabled=disabled),
                )
                metadata = (("authorization", f"Bearer {key}"),)
                response = await server.stub.Generate(request, metadata=metadata)
                # They are drafted for as all others are.
                assert response.usage.drafted_tokens > 0
    finally:
        engine.stop()
    [recorded] = learning.recorded()
    assert recorded.token_ids[:20].tolist() == [1] * 20
    assert learning.count("training_samples_total", outcome="excluded") == 2
