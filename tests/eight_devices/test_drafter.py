"""Drafters divided over devices draft what they draft on one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from tests.models.tiny import tiny_config

from blockdraft_drafter.compiled import attention
from blockdraft_drafter.compiled.buffer import HeadSharding
from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.compiled.kernel import attend_in_kernel
from blockdraft_drafter.compiled.programs import Capacity
from blockdraft_drafter.compiled.runner import CompiledMethod
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3, Eagle3
from blockdraft_drafter.method import DraftRow, DraftTokens
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.sharding import Placement, model_mesh
from blockdraft_models.weights.loading import EmbeddingAndHead

CAPACITY = Capacity(2, 200, 32, np.dtype(np.float32), projected=False)

# Devices, query heads, KV heads, and the axes that then divide each of the two.
SPLITS = {
    "KV heads divided": (2, 8, 4, "model", "model"),
    "a KV head each": (8, 8, 8, "model", "model"),
    "two devices to a KV head": (4, 8, 2, "model", None),
    "eight devices to a KV head": (8, 16, 1, "model", None),
    "KV heads that do not divide": (2, 6, 3, None, None),
    "fewer heads than devices": (8, 4, 2, None, None),
}


def target_config(heads: int, kv_heads: int) -> DecoderConfig:
    # 72 tokens are divided by every number of devices here, the 60 of a draft vocabulary not by 8.
    return tiny_config(
        num_layers=8,
        vocab_size=72,
        num_heads=heads,
        num_kv_heads=kv_heads,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def target_parts(config: DecoderConfig) -> EmbeddingAndHead:
    keys = jax.random.split(jax.random.key(1))
    shape = (config.vocab_size, config.hidden_size)
    return EmbeddingAndHead(
        0.1 * jax.random.normal(keys[0], shape), jax.random.normal(keys[1], shape)
    )


def dflash(
    target: DecoderConfig, placement: Placement | None, embedding: Any = None, **added: Any
) -> CompiledMethod:
    config = replace(
        DFlashConfig.default_for(target, block_size=4, num_features=3),
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=40,
        **added,
    )
    model = DFlash(config, rngs=nnx.Rngs(0))
    drafter = Drafter(DFLASH, model, "0" * 16, embedding=embedding)
    return CompiledMethod(drafter, target_parts(target), CAPACITY, placement=placement)


def eagle3(target: DecoderConfig, placement: Placement | None) -> CompiledMethod:
    config = replace(Eagle3Config.default_for(target, block_size=4), draft_vocab_size=60)
    draft_ids = np.random.default_rng(0).permutation(target.vocab_size)[:60].astype(np.int32)
    drafter = Drafter(EAGLE3, Eagle3(config, rngs=nnx.Rngs(0)), "0" * 16, np.sort(draft_ids))
    return CompiledMethod(drafter, target_parts(target), CAPACITY, placement=placement)


METHODS: dict[str, Callable[[DecoderConfig, Placement | None], CompiledMethod]] = {
    "dflash": dflash,
    "dflash2": partial(dflash, conv_group_size=16, selector_rank=4, selector_top_k=8),
    "own embedding": partial(dflash, embedding=np.eye(72, 32, dtype=np.float32)),
    "eagle3": eagle3,
}


def drafts(method: CompiledMethod) -> list[DraftTokens]:
    """Draft for two sequences, one beyond a chunk of context, after appends of several sizes."""
    rng = np.random.default_rng(2)
    drafts = []
    sent = {0: 0, 1: 0}
    for rows in ({0: 32, 1: 5}, {0: 32}, {0: 32}, {0: 32, 1: 1}, {0: 7, 1: 0}):
        batch = []
        for slot, count in rows.items():
            features = rng.standard_normal((count, method.spec.feature_width)).astype(np.float32)
            tokens = tuple(rng.integers(0, 72, count).tolist())
            wanted = 3 if len(rows) == 2 else 0
            batch.append(DraftRow(slot, sent[slot], features, 7 + slot, wanted, tokens))
            sent[slot] += count
        drafts += method.step(batch)
    return drafts


def divided_and_alone(method: str, split: str) -> tuple[CompiledMethod, CompiledMethod]:
    devices, heads, kv_heads, query_axis, kv_axis = SPLITS[split]
    target = target_config(heads, kv_heads)
    placement = Placement(model_mesh(jax.devices()[:devices]))
    sharding = HeadSharding.of(target, placement)
    assert (sharding.query_axis, sharding.kv_axis) == (query_axis, kv_axis)
    return METHODS[method](target, placement), METHODS[method](target, None)


def compare(divided: CompiledMethod, method: CompiledMethod) -> None:
    alone = drafts(method)
    assert len(set(alone)) > 3, "drafts should depend on the context"
    assert drafts(divided) == alone


def places(tree: Any) -> set[PartitionSpec]:
    return {array.sharding.spec for array in jax.tree.leaves(tree)}


# Heads of EAGLE-3 are divided by the same code: one split of each two axes. What the others add to
# DFlash is placed alike however heads are divided.
@pytest.mark.parametrize(
    ("method", "split"),
    [
        *(("dflash", split) for split in SPLITS),
        ("eagle3", "a KV head each"),
        ("eagle3", "two devices to a KV head"),
        ("eagle3", "fewer heads than devices"),
        *((method, "a KV head each") for method in ("dflash2", "own embedding")),
    ],
)
def test_drafts_as_on_one_device(method: str, split: str) -> None:
    compare(*divided_and_alone(method, split))


def test_everything_lies_where_it_should() -> None:
    method, _ = divided_and_alone("dflash", "KV heads divided")
    state, target, _ = method._weights
    assert places(target) == {PartitionSpec("model", None)}
    assert places(state["fc"]) == {PartitionSpec(None, None)}
    layer = state["layers"][0]
    assert places(layer["attention"]["key"]) == {PartitionSpec("model", None)}
    assert places(layer["mlp"]["down"]) == {PartitionSpec(None, "model")}
    assert places(method._cache) == {PartitionSpec(None, "model", None, None)}
    assert {len(array.sharding.device_set) for array in jax.tree.leaves(method._weights)} == {2}


def test_what_does_not_divide_lies_whole() -> None:
    method, _ = divided_and_alone("eagle3", "fewer heads than devices")
    _, target, draft_ids = method._weights
    assert target.embedding.sharding.spec == PartitionSpec("model", None)
    # 60 tokens of the draft vocabulary among 8 devices.
    assert places([target.head, draft_ids, method._cache.latest]) <= {
        PartitionSpec(),
        PartitionSpec(None, None),
    }
    assert places(method._cache.layer) == {PartitionSpec(None, None, None, None)}


@pytest.mark.usefixtures("own_programs")
@pytest.mark.parametrize(
    ("method", "split"),
    [
        *((method, "KV heads divided") for method in ("dflash", "dflash2", "eagle3")),
        *((method, "two devices to a KV head") for method in ("dflash", "eagle3")),
    ],
)
def test_kernel_drafts_as_on_one_device(
    method: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a TPU: the kernel, interpreted, on heads widened to its vector registers."""
    monkeypatch.setattr(HeadSharding, "on_tpu", True)
    monkeypatch.setattr(attention, "attend_in_kernel", partial(attend_in_kernel, interpret=True))
    divided, alone = divided_and_alone(method, split)
    widths = {array.shape[-1] for array in jax.tree.leaves(divided._cache) if array.ndim == 4}
    assert widths == {128}
    compare(divided, alone)
