"""Drafters on disk: round trips, what is published, and what is refused at once and by name."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.drafter.builders import (
    DFLASH2,
    HIDDEN,
    TARGET,
    VOCAB,
    WEIGHTS,
    drafter_config,
    eagle3_drafter,
    random_drafter,
    read_dflash,
    write_drafter,
)
from tests.drafter.dflash.test_config import QWEN3_4B
from tests.models.hostile import refused

from blockdraft_drafter.checkpoint import load_drafter, published_arrays
from blockdraft_drafter.compiled.definition import Drafter, MethodDefinition
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_models.errors import CheckpointError

METHODS: dict[str, MethodDefinition[Any]] = {"dflash": DFLASH, "eagle3": EAGLE3}
IDS = np.arange(0, 48, 2, dtype=np.int32)
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# What SafeAILab publishes: nothing of ours in the configuration.
PUBLIC: dict[str, Any] = {
    **dict.fromkeys(("blockdraft", "eagle_config", "norm_before_residual", "head_dim")),
    "architectures": ["LlamaForCausalLM"],
}


@functools.cache
def made(kind: str) -> Drafter[Any]:
    """A drafter with a vocabulary of its own, and a Markov head if there is such a thing."""
    if kind == "eagle3":
        return eagle3_drafter(draft_vocab=24)
    drafter = random_drafter(drafter_config(draft_vocab_size=24, markov_rank=4))
    return replace(drafter, draft_ids=IDS)


def load(kind: str, path: Path, dtype: Any = jnp.float32) -> Drafter[Any]:
    return load_drafter(METHODS[kind], path, TARGET, block_size=6, dtype=dtype)


def write(kind: str, path: Path, tensors: Mapping[str, Any] | None = None, **config: Any) -> Path:
    return write_drafter(made(kind), path, tensors, **config)


@pytest.fixture(params=METHODS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize(
    "drafter",
    [
        random_drafter(drafter_config()),
        random_drafter(drafter_config(target_fingerprint=TARGET.fingerprint, trained=True)),
        eagle3_drafter(norm_before_residual=True, target_fingerprint=TARGET.fingerprint),
        eagle3_drafter(fc_norm=True, norm_output=True),
        random_drafter(drafter_config(**DFLASH2)),
    ],
    ids=["dflash", "of a target", "eagle3", "eagle31", "dflash2"],
)
def test_what_is_saved_is_what_is_loaded(drafter: Drafter[Any], tmp_path: Path) -> None:
    loaded = load(drafter.definition.name, write_drafter(drafter, tmp_path))
    assert loaded.model.config.to_hf() == drafter.model.config.to_hf()
    assert loaded.fingerprint == drafter.fingerprint
    assert len(loaded.fingerprint) == 16
    assert loaded.draft_ids is None
    again = published_arrays(loaded.model)
    for name, array in published_arrays(drafter.model).items():
        np.testing.assert_array_equal(again[name], array)


def test_weights_are_converted(kind: str, tmp_path: Path) -> None:
    model = load(kind, write(kind, tmp_path), jnp.bfloat16).model
    assert {str(array.dtype) for array in published_arrays(model).values()} == {"bfloat16"}


def test_prefixed_names_are_accepted(kind: str, tmp_path: Path) -> None:
    names = dict(load_file(write(kind, tmp_path) / WEIGHTS))
    changes = {**dict.fromkeys(names), **{f"model.{name}": it for name, it in names.items()}}
    plain = load(kind, tmp_path).fingerprint
    assert load(kind, write(kind, tmp_path, changes)).fingerprint == plain


def test_every_weight_counts(kind: str, tmp_path: Path) -> None:
    """The last bit of each, rounded away in the model, and each of a drafter's own tensors."""
    tensors = load_file(write(kind, tmp_path) / WEIGHTS)
    offsets = tensors.pop("d2t").copy()
    # The first two of the ids change places.
    offsets[:2] = offsets[1] + 1, offsets[0] - 1
    changes: list[dict[str, Any]] = [{}, {"d2t": offsets}]
    for name, tensor in tensors.items():
        tensor.flat[-1] = np.nextafter(tensor.flat[-1], np.float32(np.inf))
        changes.append({name: tensor})
    changes += [
        {"lm_head.weight": np.full((24, HIDDEN), 0.5, np.float32)},
        {"embed_tokens.weight": np.full((VOCAB, HIDDEN), 0.5, np.float32)},
        {"embed_tokens.weight": np.full((VOCAB, HIDDEN), 0.25, np.float32)},
    ]
    found = {load(kind, write(kind, tmp_path, each), jnp.bfloat16).fingerprint for each in changes}
    assert len(found) == len(changes)


def test_published_names() -> None:
    tensors = list(read_dflash(QWEN3_4B).tensors())
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    assert len(shapes) == len(tensors) == 58
    assert shapes["fc.weight"] == (2560, 5 * 2560)
    assert shapes["norm.weight"] == shapes["hidden_norm.weight"] == (2560,)
    assert shapes["layers.4.self_attn.k_proj.weight"] == (1024, 2560)
    assert shapes["layers.0.self_attn.q_norm.weight"] == (128,)
    assert shapes["layers.0.mlp.down_proj.weight"] == (2560, 9728)
    markov = {tensor.name: tensor.shape for tensor in made("dflash").model.config.tensors()}
    assert markov["markov_head.markov_w1.weight"] == (VOCAB, 4)
    assert markov["markov_head.markov_w2.weight"] == (24, 4)
    assert {tensor.name for tensor in Eagle3Config.default_for(TARGET.config).tensors()} == {
        "fc.weight",
        "norm.weight",
        *(f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"midlayer.{name}layernorm.weight" for name in ("input_", "post_attention_")),
        "midlayer.hidden_norm.weight",
    }


def test_a_draft_vocabulary_is_kept_as_offsets(kind: str, tmp_path: Path) -> None:
    ids = made(kind).draft_ids
    assert ids is not None
    stored = load_file(write(kind, tmp_path) / WEIGHTS)["d2t"]
    np.testing.assert_array_equal(stored, ids - np.arange(24))
    assert stored.dtype == np.int64
    # Its inverse, and what others keep beside a Markov head, are not needed.
    extra: dict[str, Any] = {"t2d": np.isin(np.arange(VOCAB), ids)}
    if kind == "dflash":
        extra["confidence_head.proj.weight"] = np.zeros((1, 8), np.float32)
    loaded = load(kind, write(kind, tmp_path, extra))
    assert loaded.model.config.draft_vocab_size == 24
    np.testing.assert_array_equal(loaded.draft_ids, ids)


def test_a_published_eagle3_directory_loads(tmp_path: Path) -> None:
    head = np.random.default_rng(0).standard_normal((24, HIDDEN)).astype(np.float16)
    drafter = load("eagle3", write("eagle3", tmp_path, {"lm_head.weight": head}, **PUBLIC))
    config = drafter.model.config
    assert config.target_layer_ids == (1, 3, 4)
    assert (config.block_size, config.draft_vocab_size, config.trained) == (6, 24, True)
    assert not config.norm_before_residual
    assert drafter.head is not None
    np.testing.assert_array_equal(drafter.head, head.astype(np.float32))
    assert drafter.embedding is None


@pytest.mark.parametrize(("fill", "own"), [(0.0, False), (0.5, True)])
def test_an_embedding_of_zeros_is_the_targets(tmp_path: Path, fill: float, own: bool) -> None:
    plain = load("eagle3", write("eagle3", tmp_path)).fingerprint
    embedding = np.full((VOCAB, HIDDEN), fill, np.float32)
    drafter = load("eagle3", write("eagle3", tmp_path, {"embed_tokens.weight": embedding}))
    assert (drafter.embedding is not None) == own
    assert (drafter.fingerprint != plain) == own


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        # No EAGLE-3 configuration says for how many layers it is.
        ("dflash", {"num_layers": 9}, "num_target_layers is 8, the target has 9"),
        *((kind, {"hidden_size": 64}, "hidden_size is 32, the target has 64") for kind in METHODS),
        *((kind, {"vocab_size": 65}, "vocab_size is 64, the target has 65") for kind in METHODS),
    ],
)
def test_a_target_of_another_shape_is_refused(
    name: str, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    other = replace(TARGET, config=replace(TARGET.config, **changes))
    path = write(name, tmp_path)
    with refused(message, path):
        load_drafter(METHODS[name], path, other, dtype=jnp.float32)


BOTH: list[tuple[dict[str, Any], str]] = [
    ({"blockdraft": {"target_fingerprint": "f" * 16}}, "target f{16}, not for 0123456789abcdef"),
    ({"blockdraft": 7}, "blockdraft must be an object"),
    ({"vocab_size": "64"}, "must be a whole number"),
    ({"vocab_size": 99}, "vocab_size|markov"),
    ({"intermediate_size": 10**9}, "shape: .*gate_proj"),
    ({"draft_vocab_size": 30}, r"d2t is \(24,\), expected \(30,\)|markov_w2"),
    ({"draft_vocab_size": 0}, r"draft_vocab_size 0 is not in \[1, 64\]"),
    ({"draft_vocab_size": 65}, r"draft_vocab_size 65 is not in \[1, 64\]"),
]
ONE: list[tuple[str, dict[str, Any], str]] = [
    ("dflash", {"num_target_layers": 4}, "num_target_layers|target layer 5 is not in"),
    ("dflash", {"dflash_config": "x"}, "dflash_config must be an object"),
    ("dflash", {"block_size": 10**9}, "block_size must be at most"),
    ("dflash", {"num_hidden_layers": 10**12}, "num_layers must be at most"),
    ("dflash", {"use_swa": True}, "use_swa"),
    ("dflash", {"conv_group_size": 8}, r"missing: layers\.0\.attention_conv\.base_kernel"),
    ("dflash", {"conv_group_size": "8"}, "attention_conv"),
    ("dflash", {"conv_group_size": [8]}, "int"),
    ("dflash", {"markov_head_type": "gated"}, "markov_head_type of 'gated'"),
    ("dflash", {"markov_rank": -1}, "markov_rank -1"),
    ("dflash", {"markov_rank": 5}, "markov_head.markov_w1.weight is"),
    ("dflash", {"markov_rank": 0}, "unexpected: markov_head.markov_w1.weight"),
    ("eagle3", {"eagle_config": {LAYER_IDS: [2, 4, 9]}}, "layer 8 is not in"),
    ("eagle3", {"eagle_config": {LAYER_IDS: [1, 4, 8]}}, "layer 8 is not in"),
    ("eagle3", {"eagle_config": [1]}, "eagle_config must be an object"),
    ("eagle3", {"eagle_config": {"norm_before_fc": True}}, r"missing: input_norm\.weight"),
    ("eagle3", {"fc_norm": True}, r"missing: fc_norm\.0\.weight"),
    ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "auxiliary"),
    ("eagle3", {"blockdraft": {"block_size": 10**9}}, "block_size must be at most"),
    ("eagle3", {"blockdraft": {"block_size": 1}}, "block_size must be at least"),
    ("eagle3", {"num_hidden_layers": 2}, "one draft layer"),
    ("eagle3", {"hidden_size": 16, "head_dim": 8}, "hidden_size"),
]


@pytest.mark.parametrize(
    ("name", "changes", "message"), [(kind, *each) for kind in METHODS for each in BOTH] + ONE
)
def test_impossible_configurations(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    path = write(name, tmp_path, **changes)
    with refused(message, path):
        load(name, path)


def test_wrong_tensors_are_named(kind: str, tmp_path: Path) -> None:
    tensors = load_file(write(kind, tmp_path) / WEIGHTS)
    fc, d2t = tensors["fc.weight"], tensors["d2t"]
    swapped = d2t.copy()
    swapped[1] = swapped[0] - 1
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"fc.weight": fc.astype(np.int8)}, "fc.weight is stored as I8"),
        ({"model.fc.weight": fc}, "holds a tensor twice, as fc.weight and model.fc.weight"),
        ({"extra": fc}, "unexpected: extra"),
        ({"fc.weight": fc.T.copy()}, r"shape: fc.weight is \(96, 32\), expected \(32, 96\)"),
        ({"norm.weight": None}, r"missing: norm\.weight"),
        ({"d2t": None}, "missing: d2t"),
        ({"d2t": d2t[:-1].copy()}, r"d2t is \(23,\), expected \(24,\)"),
        ({"d2t": d2t.astype(np.float32)}, "d2t holds float32, not whole numbers"),
        *(
            ({"d2t": wrong}, "d2t does not name distinct tokens of a vocabulary of 64")
            for wrong in (d2t + 10**6, np.full_like(d2t, 2**63 - 1), -1 - 0 * d2t, swapped)
        ),
        # One id beyond the last, and one before the first.
        ({"d2t": np.r_[d2t[:-1], VOCAB - 23]}, "distinct tokens"),
        ({"d2t": np.r_[-1, d2t[1:]]}, "distinct tokens"),
    )
    for changed, message in cases:
        path = write(kind, tmp_path, changed)
        with refused(message, path):
            load(kind, path)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_matrices_of_its_own_must_fit(kind: str, name: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, {name: np.zeros((2, 2), np.float32)})
    with refused(rf"{name} is \(2, 2\), expected", path):
        load(kind, path)


def test_files_that_lie(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path / "drafter")
    file = path / WEIGHTS
    file.write_bytes(file.read_bytes()[:100])
    with refused("cannot read", file):
        load(kind, path)
    file.unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with refused("pickled weights", path):
        load(kind, path)
    (path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        load(kind, path)
    (path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(CheckpointError, match=r"lacks|missing"):
        load(kind, path)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load(kind, tmp_path / "nowhere")
