"""A drafter that learns, behind a real engine: what it records, and weights that come and go."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from prometheus_client import CollectorRegistry
from tests.drafter.learning.test_trials import die_trying
from tests.e2e.test_fair_share import serving_verifier
from tests.fakes.drafting import SessionLink
from tests.models.tiny import write_hf_checkpoint
from tests.server.support import running_server, settings_for
from tests.verifier.support import (
    CONFIG,
    Outcome,
    decode,
    make_engine,
    random_requests,
    tiny_decoder,
)

from blockdraft_drafter.app import load_method
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.definition import DFLASH
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.files.checkpoint import save_drafter
from blockdraft_drafter.files.sources import load_any
from blockdraft_drafter.learning.journal import Journal
from blockdraft_drafter.learning.learner import Learner
from blockdraft_drafter.learning.metrics import LearningMetrics
from blockdraft_drafter.learning.recordings import Recording, Recordings
from blockdraft_drafter.learning.service_tau import Ended
from blockdraft_drafter.learning.trials import ENOUGH_PROPOSALS, has_served
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.service import LoadedMethod
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.loading import Checkpoint, load_checkpoint_config
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.learning import LearningSettings
from blockdraft_server.access.tenants import digest_of
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.scheduling.sequence import GenerationRequest


@dataclass
class Target:
    decoder: Decoder
    path: Path
    checkpoint: Checkpoint


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    decoder, path = tiny_decoder(), tmp_path_factory.mktemp("target")
    write_hf_checkpoint(decoder, path)
    return Target(decoder, path, load_checkpoint_config(path))


@dataclass
class Learning:
    """A drafter that learns, and what can be done to its versions."""

    target: Target
    directory: Path
    registry: CollectorRegistry
    loaded: LoadedMethod

    @property
    def learner(self) -> Learner:
        assert self.loaded.learner is not None
        return self.loaded.learner

    @property
    def store(self) -> VersionStore:
        return VersionStore(self.directory)

    @property
    def method(self) -> CompiledMethod:
        assert isinstance(self.loaded.method, CompiledMethod)
        return self.loaded.method

    def engine(self) -> Engine:
        link = SessionLink(self.loaded.method, learn=self.learner.stream)
        return make_engine(self.target.decoder, link)

    def look(self) -> None:
        asyncio.run(self.learner.look())

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"blockdraft_drafter_{name}", labels) or 0.0

    def learned(self, seed: int, value: float | None = None) -> int:
        """Add a version with other weights behind the same projection, or with one `value`."""
        base = load_any(self.store.path(1), self.target.checkpoint, block_size=4, dtype=jnp.float32)
        model = DFlash(base.model.config, rngs=nnx.Rngs(seed))
        model.fc.weight[...] = base.model.fc.weight[...]
        model.hidden_norm.scale[...] = base.model.hidden_norm.scale[...]
        if value is not None:
            model.norm.scale[...] = jnp.full_like(model.norm.scale[...], value)
        return self.store.add(
            lambda folder: save_drafter(DFLASH, model, folder),
            kind="learned",
            fingerprint=f"{seed:016x}",
            parent=1,
        ).number

    def recorded(self) -> list[Recording]:
        self.learner.close()
        return [found for _, found in Recordings(self.directory / "recordings", 1).readable()]


def begin(target: Target, directory: Path, drafter: str = "random") -> Learning:
    registry = CollectorRegistry()
    settings = DrafterSettings(
        target=str(target.path),
        drafter=drafter,
        max_sequences=4,
        max_context_tokens=96,
        max_feature_rows=4,
        block_size=4,
        dtype="float32",
        learning=LearningSettings(enabled=True, directory=directory),
    )
    loaded = load_method(settings, counts=LearningMetrics(registry))
    return Learning(target, directory, registry, loaded)


def copied(checkpoint: Path, folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(checkpoint / name, folder / name)


@pytest.fixture
def learning(target: Target, tmp_path: Path) -> Iterator[Learning]:
    learning = begin(target, tmp_path / "learn")
    yield learning
    learning.learner.close()


def allowed(requests: Sequence[GenerationRequest], which: int = -1) -> list[GenerationRequest]:
    """Let all requests be recorded, or every second one."""
    return [replace(r, recordable=which < 0 or i % 2 == which) for i, r in enumerate(requests)]


def test_answers_are_the_same_while_weights_come_and_go(learning: Learning) -> None:
    requests = allowed(random_requests(3, count=6, max_output_tokens=24))
    plain = [replace(request, max_draft_tokens=0) for request in requests]
    expected = [outcome.tokens for outcome in decode(learning.engine(), plain)]
    learning.store.promote(learning.learned(1))
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
            learning.look()
        if steps == 8:
            learning.store.promote(learning.learned(2))
            learning.look()
        if steps == 12:
            learning.store.roll_back("by hand")
            learning.look()
    assert [outcome.tokens for outcome in outcomes] == expected
    assert engine.metrics.repair_count() == 0
    assert steps > 14
    assert versions >= {1, 2, 3}
    assert learning.learner.serving.number == 2
    assert learning.count("version_changes_total", kind="swapped") == 3
    assert learning.count("version") == 2
    verified = learning.count("version_verifications_total", version="2", context="older")
    assert verified > 0


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
        assert each.answer_start == len(request.prompt)
        assert each.temperature == pytest.approx(request.sampling.temperature)
        assert each.target_fingerprint == learning.target.checkpoint.fingerprint
        assert each.features.shape == (len(each.token_ids), CONFIG.hidden_size)
    assert learning.count("recordings_total", outcome="excluded") == sum(
        not request.recordable for request in requests
    )


def test_sequences_for_which_nothing_is_drafted_are_recorded_too(learning: Learning) -> None:
    requests = allowed(random_requests(5, count=4, max_output_tokens=30))
    drafted = decode(learning.engine(), requests)
    engine = learning.engine()
    # Nothing pays that takes so long.
    engine.lengths._policy = "adaptive"
    assert engine.lengths.costs is not None
    engine.lengths.costs.attach_drafter([1e3])
    again = decode(engine, requests)
    assert [outcome.tokens for outcome in again] == [outcome.tokens for outcome in drafted]
    recorded = sorted(learning.recorded(), key=lambda each: each.token_ids.tolist())
    assert len(recorded) >= 4
    for one, other in zip(recorded[::2], recorded[1::2], strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.features.view(np.uint16), other.features.view(np.uint16))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(learning: Learning, value: float) -> None:
    before = learning.method.spec.fingerprint
    number = learning.learned(1, value)
    learning.store.promote(number)
    learning.look()
    assert learning.method.spec.fingerprint == before
    assert learning.store.read(number).state == "rejected"
    assert "not finite" in learning.store.read(number).reason
    current = learning.store.current()
    assert current is not None
    assert current.number == learning.learner.serving.number == 1
    assert learning.count("version_changes_total", kind="refused") == 1
    learning.look()
    assert learning.count("version_changes_total", kind="refused") == 1


def test_what_the_trainer_does_is_shown(learning: Learning) -> None:
    learning.look()
    Journal(total_steps=3, tau=1.5).write(learning.directory)
    learning.look()
    assert learning.count("learning_steps_total") == 3
    assert learning.count("learning_held_out_tau", drafter="candidate") == 1.5
    (learning.directory / "journal.json").write_text("no journal", encoding="utf-8")
    number = learning.learned(1)
    learning.store.promote(number)
    learning.look()
    # It stays as it was, and keeps no version from being taken over.
    assert learning.count("learning_held_out_tau", drafter="candidate") == 1.5
    assert learning.learner.serving.number == number


def test_a_damaged_store_changes_nothing(learning: Learning) -> None:
    number = learning.learned(1)
    learning.store.promote(number)
    whole = learning.store.current_file.read_text()
    learning.store.current_file.write_text(whole[: len(whole) // 2])
    learning.look()
    # It is the promoted version with the highest number, as before the damage.
    assert learning.learner.serving.number == number
    shutil.rmtree(learning.store.path(number))
    learning.look()
    assert learning.learner.serving.number == 1
    broken = learning.learned(2)
    weights = learning.store.path(broken) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    learning.store.promote(broken)
    learning.look()
    assert learning.store.read(broken).state == "rejected"
    shutil.rmtree(learning.directory)
    learning.look()
    assert learning.learner.serving.number == 1


def test_a_drafter_that_starts_again_goes_on_with_what_was_promoted(learning: Learning) -> None:
    number = learning.learned(1)
    learning.store.promote(number)
    # It dies here: it was told of the version and has not taken it over.
    again = begin(learning.target, learning.directory)
    # What nobody knows to be harmless is not loaded before it serves.
    assert again.learner.serving.number == 1
    again.look()
    assert again.learner.serving.number == number
    serve_for_a_while(again)
    again.learner.close()
    other = begin(learning.target, learning.directory)
    assert other.learner.serving.number == number
    assert other.method.spec.fingerprint == again.method.spec.fingerprint
    other.learner.close()
    # What cannot be loaded at the start is passed over.
    (learning.store.path(number) / "config.json").write_text("{")
    third = begin(learning.target, learning.directory)
    assert third.learner.serving.number == 1
    assert learning.store.read(number).state == "rejected"
    third.learner.close()


def serve_for_a_while(learning: Learning) -> None:
    """Let the version that drafts have as many proposals verified as are enough."""
    number = learning.learner.serving.number
    assert not has_served(learning.store.path(number))
    for _ in range(ENOUGH_PROPOSALS):
        learning.learner.verified(number, 1, own_context=True)
    learning.look()
    assert has_served(learning.store.path(number))


def trials_of(learning: Learning, number: int) -> int:
    return len(list(learning.store.path(number).glob("trial-*")))


def test_a_version_that_kills_is_tried_twice_and_then_refused(learning: Learning) -> None:
    number = learning.learned(1)
    learning.store.promote(number)
    die_trying(learning.store.path(number))
    die_trying(learning.store.path(number))
    learning.look()
    version = learning.store.read(number)
    assert (version.state, version.reason) == (
        "rejected",
        "2 processes died while they tried it",
    )
    assert learning.learner.serving.number == 1
    current = learning.store.current()
    assert current is not None
    assert current.number == 1
    assert learning.count("version_changes_total", kind="refused") == 1
    # By hand, somebody may think better of it; then it is tried again.
    learning.store.promote(number)
    learning.look()
    assert learning.learner.serving.number == number


def test_a_version_that_lived_through_one_death_serves(learning: Learning) -> None:
    number = learning.learned(1)
    learning.store.promote(number)
    die_trying(learning.store.path(number))
    learning.look()
    assert learning.learner.serving.number == number
    assert trials_of(learning, number) == 2
    serve_for_a_while(learning)
    assert trials_of(learning, number) == 0


def test_a_trial_ends_with_another_version_and_with_a_stop_in_order(learning: Learning) -> None:
    first, second = learning.learned(1), learning.learned(2)
    learning.store.promote(first)
    learning.look()
    assert trials_of(learning, first) == 1
    # Few proposals say nothing yet.
    learning.learner.verified(first, 1, own_context=True)
    learning.store.promote(second)
    learning.look()
    assert (trials_of(learning, first), trials_of(learning, second)) == (0, 1)
    learning.learner.close()
    assert trials_of(learning, second) == 0
    assert not has_served(learning.store.path(first))


def test_a_version_that_is_refused_was_tried_by_nobody(learning: Learning) -> None:
    number = learning.learned(1, float("nan"))
    learning.store.promote(number)
    learning.look()
    assert learning.store.read(number).state == "rejected"
    assert trials_of(learning, number) == 0


def test_without_a_drafter_it_records_for_one_made_of_nothing(
    learning: Learning, tmp_path: Path
) -> None:
    store = VersionStore(tmp_path / "nothing")
    made = learning.store.path(1)
    whole, broken = (
        store.add(
            lambda folder: copied(made, folder),
            kind="initialized",
            fingerprint="0" * 16,
        ).number
        for _ in range(2)
    )
    (store.path(broken) / "model.safetensors").write_bytes(b"")
    nothing = begin(learning.target, tmp_path / "nothing", drafter="auto")
    assert nothing.learner.serving.number == whole
    assert store.read(broken).state == "rejected"
    # It serves to be recorded for; whether it pays is not known yet.
    assert store.current() is None
    nothing.look()
    assert nothing.learner.serving.number == whole
    # Its projection has everything to learn, too; that of a drafter that was named went on.
    assert nothing.method.spec.projection is None
    assert learning.method.spec.projection is not None
    nothing.learner.close()


def test_another_drafter_of_the_settings_begins_anew(learning: Learning, tmp_path: Path) -> None:
    learning.store.promote(learning.learned(1))
    shutil.copytree(learning.store.path(1), tmp_path / "named")
    config = json.loads((tmp_path / "named" / "config.json").read_text())
    config["blockdraft"]["trained"] = True
    (tmp_path / "named" / "config.json").write_text(json.dumps(config))
    from blockdraft_drafter.learning.start import load_current

    named = load_any(
        tmp_path / "named", learning.target.checkpoint, block_size=4, dtype=jnp.float32
    )
    version, drafter = load_current(
        learning.store, named, tmp_path / "named", learning.target.checkpoint, jnp.float32
    )
    assert (version.number, version.kind, version.state) == (3, "shipped", "promoted")
    assert drafter is named
    base = learning.store.base()
    assert base is not None
    assert base.number == 3


def test_it_goes_back_by_itself_when_less_is_accepted(learning: Learning) -> None:
    for _ in range(200):
        learning.learner.ended(1, Ended(40, 20))
        learning.learner.ended(1, Ended(30, 20))
    number = learning.learned(1)
    learning.store.promote(number)
    learning.look()
    assert learning.learner.serving.number == number
    for _ in range(32):
        learning.learner.ended(number, Ended(24, 20))
        learning.learner.ended(number, Ended(22, 20))
    learning.look()
    assert learning.learner.serving.number == 1
    version = learning.store.read(number)
    assert version.state == "rolled_back"
    assert "fell from 1.750 to 1.150" in version.reason
    assert learning.count("version_changes_total", kind="rolled_back") == 1


def test_nothing_ends_the_looking(learning: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def fails(self: VersionStore) -> None:
        looks.append(1)
        raise ZeroDivisionError

    async def run() -> None:
        task = asyncio.create_task(learning.learner.run())
        while len(looks) < 3:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()

    monkeypatch.setattr("blockdraft_drafter.learning.learner.LOOK_SECONDS", 0.0)
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
    assert learning.count("recordings_total", outcome="excluded") == 2
