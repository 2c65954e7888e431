"""The compiled programs of verifier and drafter are those on record, word by word.

Moving and renaming code changes none of them. A commit that means to change one records the new
hashes, and says why: `JAX_PLATFORMS=cpu python -m tests.test_programs`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import blockdraft_drafter
from blockdraft_drafter.compiled.programs import Capacity, DraftPrograms
from blockdraft_drafter.dflash.model import DFLASH
from blockdraft_drafter.eagle3.model import EAGLE3
from blockdraft_models.decoder.config import DecoderConfig
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.kernels import library
from blockdraft_models.weights.quantization import hold_int8
from blockdraft_verifier.device.buckets import all_buckets
from blockdraft_verifier.device.cache import CacheLayout
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.step import TargetStep

SHIPPED = Path(blockdraft_drafter.__file__).parent / "checkpoints"
RECORD = Path(__file__).parent / "golden" / "programs.json"
SMOLLM2 = DecoderConfig(
    name="smollm2-135m",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    attention_bias=False,
    qk_norm=False,
    max_position_embeddings=8192,
    bos_token_id=1,
    eos_token_ids=(2,),
)
TINY = replace(
    SMOLLM2,
    name="tiny",
    vocab_size=260,
    hidden_size=32,
    intermediate_size=64,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=256,
)
# The layers of a target are alike; drafters take features of more.
SHALLOW, SHALLOW_SMOLLM2 = (replace(config, num_layers=3) for config in (TINY, SMOLLM2))
# Sequences, tokens of a step, tokens of a context.
LIMITS = {
    **dict.fromkeys((SMOLLM2, SHALLOW_SMOLLM2), (16, 256, 2048)),
    **dict.fromkeys((TINY, SHALLOW), (4, 16, 96)),
}
PAGE_SIZE = 16


def text_of(lowered: jax.stages.Lowered) -> str:
    """Return the StableHLO without the names that Python gave to functions and results."""
    text = re.sub(r" ?\{?jax\.result_info = \"[^\"]*\"\}?", "", lowered.as_text())
    text = re.sub(r"^module @\S+", "module", text)
    functions = re.findall(r"func\.func \w+ @(\S+?)\(", text)
    names = {name: f"@f{number}" for number, name in enumerate(functions)}
    return re.sub(r"@([\w.]+)", lambda found: names.get(found[1], found[0]), text)


def target_programs(
    config: DecoderConfig,
    scanned: bool,
    dtype: str,
    stored: Callable[[Decoder], Decoder] = lambda decoder: decoder,
) -> Iterator[tuple[str, str]]:
    rows, tokens, context = LIMITS[config]

    def make() -> Decoder:
        decoder = stored(Decoder(config, dtype=jnp.dtype(dtype), rngs=None))
        return ScannedDecoder(decoder) if scanned else decoder

    graph, weights = nnx.split(nnx.eval_shape(make))
    layout = CacheLayout.of(config, 64, PAGE_SIZE, dtype, mesh=None, stacked=scanned)
    step = TargetStep(graph, layout, -(-context // PAGE_SIZE), FeatureForm((0, 2)), 8)
    # Steps differ in shape only: a few will do, the largest among them.
    for bucket in all_buckets(rows, tokens, 8, 1)[::-3]:
        yield f"{bucket.rows}x{bucket.tokens}", text_of(step.lower(weights, bucket))


def programs_of(config: DecoderConfig, method: str, dtype: str) -> DraftPrograms:
    rows, tokens, context = LIMITS[config]
    definition: Any = {"dflash": DFLASH, "eagle3": EAGLE3}[method]
    shape = definition.config_type.default_for(config)
    if config == SMOLLM2:
        shipped = SHIPPED / f"smollm2-135m-{method}" / "config.json"
        shape = definition.config_type.from_hf(
            json.loads(shipped.read_text()), config, block_size=8
        )
    capacity = Capacity(rows, context, tokens, jnp.dtype(jnp.bfloat16), projected=False)
    programs: DraftPrograms = definition.abstract_programs(
        shape, config, capacity, dtype=dtype, placement=None
    )
    return programs


def draft_programs(config: DecoderConfig, method: str, dtype: str) -> Iterator[tuple[str, str]]:
    programs = programs_of(config, method, dtype)
    for size in (programs.append_sizes[0], programs.append_sizes[-1]):
        yield f"append {size}", text_of(programs.lower("append", size))
    for size in (programs.draft_sizes[0], programs.draft_sizes[-1]):
        yield f"draft {size}", text_of(programs.lower("draft", size))


GROUPS = {
    "tiny target": lambda: target_programs(SHALLOW, False, "float32"),
    "tiny target, scanned": lambda: target_programs(SHALLOW, True, "bfloat16"),
    "tiny target, int8": lambda: target_programs(SHALLOW, False, "bfloat16", hold_int8),
    "smollm2 target": lambda: target_programs(SHALLOW_SMOLLM2, False, "bfloat16"),
    "tiny dflash": lambda: draft_programs(TINY, "dflash", "float32"),
    "tiny eagle3": lambda: draft_programs(TINY, "eagle3", "float32"),
    "smollm2 dflash": lambda: draft_programs(SMOLLM2, "dflash", "bfloat16"),
    "smollm2 eagle3": lambda: draft_programs(SMOLLM2, "eagle3", "bfloat16"),
}


def hashes_of(group: str) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patched:
        # Those of a CPU with kernels, whether or not it has them.
        patched.setattr(library, "_loaded", lambda: True)
        return {
            name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in GROUPS[group]()
        }


@pytest.mark.usefixtures("own_programs")
@pytest.mark.parametrize("group", GROUPS)
def test_programs_are_those_on_record(group: str) -> None:
    assert hashes_of(group) == recorded()[group]


def recorded() -> dict[str, dict[str, str]]:
    record = json.loads(RECORD.read_text())
    assert record["jax"] == jax.__version__, (
        f"jax {jax.__version__} is installed, but {RECORD.name} is of {record['jax']}: with the "
        "product code as it was, record anew by `JAX_PLATFORMS=cpu python -m tests.test_programs`"
    )
    programs: dict[str, dict[str, str]] = record["programs"]
    return programs


def test_a_record_of_another_jax_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version__", "99.0")
    with pytest.raises(AssertionError, match=r"python -m tests\.test_programs"):
        recorded()


if __name__ == "__main__":
    programs = {group: hashes_of(group) for group in GROUPS}
    RECORD.write_text(json.dumps({"jax": jax.__version__, "programs": programs}, indent=2) + "\n")
