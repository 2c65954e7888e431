"""Which drafter a specification leads to."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import jax.numpy as jnp
import pytest
from tests.drafter.builders import (
    TARGET,
    drafter_config,
    eagle3_drafter,
    random_drafter,
    write_drafter,
)
from tests.models.decoder.test_config import PUBLISHED

from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_drafter.known import KNOWN_PAIRS, TARGETS_BY_SHAPE, known_drafter
from blockdraft_drafter.sources import (
    NoDrafterError,
    obtain_drafter,
    published_method,
    shipped_for,
)
from blockdraft_models.errors import ResolveError
from blockdraft_models.families.published_config import config_from_hf

obtain = partial(obtain_drafter, target=TARGET, block_size=5, num_layers=1, dtype=jnp.float32)


def test_methods_are_told_apart() -> None:
    dflash = drafter_config(draft_vocab_size=24).to_hf()
    assert published_method(dflash) is DFLASH
    assert published_method({**dflash, "architectures": None}) is DFLASH
    eagle = Eagle3Config.default_for(TARGET.config).to_hf()
    assert published_method(eagle) is EAGLE3
    assert published_method({**eagle, "architectures": ["LlamaForCausalLM"]}) is EAGLE3


@pytest.mark.parametrize(("spec", "method"), [("random", DFLASH), ("random-eagle3", EAGLE3)])
def test_random_drafters(spec: str, method: Any) -> None:
    drafter = obtain(spec)
    assert drafter.definition is method
    assert drafter.fingerprint == obtain(f"{spec}:0").fingerprint != obtain(f"{spec}:1").fingerprint
    config = drafter.model.config
    assert (config.block_size, config.trained) == (5, False)
    assert config.target_fingerprint == TARGET.fingerprint
    with pytest.raises(ResolveError, match="the seed must be a whole number"):
        obtain(f"{spec}:x")


def test_a_directory_is_of_the_method_it_says(tmp_path: Path) -> None:
    assert obtain(str(write_drafter(eagle3_drafter(), tmp_path))).definition is EAGLE3
    with pytest.raises(ResolveError, match="no EAGLE-3 drafter is shipped"):
        obtain("eagle3")
    with pytest.raises(ResolveError):
        obtain("no-such-thing")


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fetched from the hub, which is the same drafter whatever its name is."""
    names: list[str] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str], **_: object) -> str:
        names.append(repository)
        return str(write_drafter(random_drafter(drafter_config()), tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return names


def test_hub_ids(fetched: list[str]) -> None:
    expected = random_drafter(drafter_config()).fingerprint
    assert obtain("z-lab/Tiny-DFlash-b4").fingerprint == expected
    for target in ("Qwen/Qwen3-8B", "qwen/qwen3-8b"):
        assert obtain("auto", target_spec=target).fingerprint == expected
    known = ["z-lab/Qwen3-8B-DFlash-b16"] * 2
    assert fetched == ["z-lab/Tiny-DFlash-b4", *known]
    # The name of a folder is no hub id, whatever is in it.
    with pytest.raises(NoDrafterError, match="no drafter is known for this target"):
        obtain("auto", target_spec="/models/Qwen3-8B")
    assert len(fetched) == 3
    assert known_drafter("meta-llama/Meta-Llama-3.1-8B-Instruct") == known_drafter(
        "meta-llama/Llama-3.1-8B-Instruct"
    )
    assert known_drafter("smollm2-135m") is None


QWEN3_MOE = {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 5472,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rope_theta": 10000000,
    "vocab_size": 151936,
}
GPT_OSS = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "vocab_size": 201088,
}
# What the `config.json` of each says of its shape.
PUBLISHED_TARGETS: dict[str, dict[str, Any]] = {
    **{f"Qwen/{target.name}": target.file() for target in PUBLISHED[5:8]},
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": QWEN3_MOE,
    "openai/gpt-oss-20b": {**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    "openai/gpt-oss-120b": {**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    "meta-llama/Llama-3.1-8B-Instruct": PUBLISHED[0].file(),
}


def advice(published: dict[str, Any]) -> str:
    """What `auto` says of a target in a folder with this configuration."""
    target = replace(TARGET, config=config_from_hf(published))
    with pytest.raises(NoDrafterError) as refusal:
        obtain("auto", target=target, target_spec="/models/mine")
    return str(refusal.value)


@pytest.mark.parametrize("name", PUBLISHED_TARGETS)
def test_copies_are_recognized_by_their_shape(name: str) -> None:
    published = PUBLISHED_TARGETS[name]
    # A copy may say more, and otherwise, of its name and use.
    copy = {**published, "_name_or_path": "/tmp/x", "eos_token_id": 7, "torch_dtype": "float16"}
    for config in (published, copy, {**copy, "max_position_embeddings": 8192}):
        said = advice(config)
        assert f"shaped like {name}:" in said
        assert f"--drafter {known_drafter(name)}" in said
    for size in ("vocab_size", "hidden_size", "num_hidden_layers"):
        said = advice({**published, size: 2 * published[size], "layer_types": None})
        assert "shaped like" not in said
        assert "name one with --drafter" in said


def test_all_known_targets_are_recognized() -> None:
    targets = {pair.target for pair in KNOWN_PAIRS if "/" in pair.drafter}
    assert set(TARGETS_BY_SHAPE.values()) == targets == set(PUBLISHED_TARGETS)


@pytest.mark.parametrize("target", sorted({pair.target for pair in KNOWN_PAIRS}))
def test_of_several_auto_takes_the_one_of_the_highest_acceptance(target: str) -> None:
    first, *others = [pair for pair in KNOWN_PAIRS if pair.target == target]
    assert known_drafter(target) == (first.drafter if "/" in first.drafter else None)
    for pair in others:
        length = first.sampled_acceptance_length
        assert length is not None
        assert length >= (pair.sampled_acceptance_length or 1)


@pytest.mark.parametrize(
    ("method", "make"),
    [
        (DFLASH, lambda **of: random_drafter(drafter_config(**of))),
        (EAGLE3, lambda **of: eagle3_drafter(**of)),
    ],
)
def test_what_ships_is_found_by_method_and_target(
    method: Any, make: Callable[..., Any], tmp_path: Path
) -> None:
    write_drafter(make(target_fingerprint="f" * 16), tmp_path / "a-other")
    mine = write_drafter(make(target_fingerprint=TARGET.fingerprint), tmp_path / "mine")
    assert shipped_for(method, TARGET, tmp_path) == mine
    assert shipped_for(EAGLE3 if method is DFLASH else DFLASH, TARGET, tmp_path) is None
    assert shipped_for(method, replace(TARGET, fingerprint="0" * 16), tmp_path) is None
