"""Other weights in the compiled steps: what they draft, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.drafter.builders import drafter_config, make_method, random_drafter, target_parts

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.method import DraftRow, DraftTokens

CONFIG = drafter_config()
WIDTH = CONFIG.feature_width


def method_of(seed: int, compiled: list[int] | None = None, **capacity: Any) -> CompiledMethod:
    count = [] if compiled is None else compiled
    drafter = random_drafter(CONFIG, seed)
    small = {"max_sequences": 1, "max_feature_rows": 4, "max_context_tokens": 64}
    return make_method(drafter, target_parts(), lambda: count.append(1), **small, **capacity)


def drafted(method: CompiledMethod) -> DraftTokens:
    features = np.random.default_rng(0).standard_normal((20, WIDTH)).astype(np.float32)
    [draft] = method.step([DraftRow(0, 0, features, 5, 3)])
    return draft


def test_other_weights_draft_as_if_they_had_been_there_from_the_start() -> None:
    compiled: list[int] = []
    method, other = method_of(0, compiled), method_of(1)
    method.warm_up()
    before = drafted(method)
    method.swap(method.prepare(random_drafter(CONFIG, 1)))
    after = drafted(method)
    assert after == drafted(other)
    assert after != before
    assert method.spec.fingerprint == other.spec.fingerprint
    method.swap(method.prepare(random_drafter(CONFIG, 0)))
    assert drafted(method) == before
    assert not compiled


def other_scale(model: DFlash) -> None:
    model.hidden_norm.scale[...] = 2.0 * model.hidden_norm.scale[...]


def not_finite(model: DFlash) -> None:
    weight = model.fc.weight[...]
    model.fc.weight[...] = weight.at[3, 4].set(jnp.nan)


def changed(change: Any) -> Drafter[DFlash]:
    drafter = random_drafter(CONFIG, 1)
    change(drafter.model)
    return drafter


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: changed(not_finite), "not finite"),
        (lambda: random_drafter(drafter_config(block_size=5)), "configuration is another"),
        (lambda: random_drafter(drafter_config(draft_vocab_size=32)), "configuration is another"),
        (lambda: replace(random_drafter(CONFIG), draft_ids=np.arange(9)), "draft vocabulary"),
        (lambda: replace(random_drafter(CONFIG), head=np.zeros((2, 2))), "a head of its own"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Drafter[DFlash]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_of(0).prepare(make())


def test_with_projected_features_the_projection_stays() -> None:
    method = method_of(0, projected=True)
    with pytest.raises(ValueError, match="projection of features is another"):
        method.prepare(random_drafter(CONFIG, 1))
    frozen = random_drafter(CONFIG, 1)
    base = random_drafter(CONFIG, 0).model
    frozen.model.fc.weight[...] = base.fc.weight[...]
    frozen.model.hidden_norm.scale[...] = base.hidden_norm.scale[...]
    method.swap(method.prepare(frozen))
    other_scale(frozen.model)
    with pytest.raises(ValueError, match="projection of features is another"):
        method.prepare(frozen)
