"""A target and the drafter that its process hosts."""

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from tests.hosted.pair import hosting, threaded
from tests.models.quantized import int8_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.patience import until
from tests.verifier.support import decode, random_requests, tiny_decoder

from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.sources import load_any
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.memory import device_bytes
from blockdraft_models.weights.loading import load_checkpoint_config


def test_a_version_is_taken_over_while_it_serves(tmp_path: Path) -> None:
    requests, store = random_requests(7, count=4), VersionStore(tmp_path / "learn")
    with hosting(tmp_path / "target", "random:3", tmp_path / "learn") as engine:
        before = [outcome.tokens for outcome in decode(engine, requests)]
        checkpoint = load_checkpoint_config(tmp_path / "target")
        base = load_any(store.path(1), checkpoint, block_size=8, dtype=jnp.float32)
        base.model.norm.scale[...] = -base.model.norm.scale[...]
        learned = store.add(
            lambda folder: save_drafter(base.model, folder),
            kind="learned",
            fingerprint="0123456789abcdef",
            parent=1,
        )
        store.promote(learned.number)

        def taken_over() -> bool:
            assert [outcome.tokens for outcome in decode(engine, requests)] == before
            return engine.drafter is not None and engine.drafter.version == learned.number

        until(taken_over)


def test_an_int8_head_is_the_drafter_s_too(tmp_path: Path) -> None:
    config = tiny_config(num_layers=2, tie_word_embeddings=False)
    target = int8_decoder(Decoder(config, rngs=nnx.Rngs(0)), tmp_path)
    drafter = threaded(tmp_path, "random:3", "float32")
    arrays, weights = drafter.load(target, lambda stage, done, total: None), nnx.state(target)
    together, apart = device_bytes((weights, arrays)), device_bytes(weights) + device_bytes(arrays)
    assert target.head is not None
    head = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(target.head)))
    assert head == config.vocab_size * (config.hidden_size + 4)
    assert apart - together == target.embedding.table[...].nbytes + head
    drafter.stop()


def test_the_target_s_embedding_is_not_loaded_twice(tmp_path: Path) -> None:
    decoder, stages = tiny_decoder(), []

    def report(stage: str, done: int, total: int) -> None:
        stages.append(stage)

    write_hf_checkpoint(decoder, tmp_path)
    drafter = threaded(tmp_path, "random:3", "float32")
    arrays, weights = drafter.load(decoder, report), nnx.state(decoder)
    together, apart = device_bytes((weights, arrays)), device_bytes(weights) + device_bytes(arrays)
    assert apart - together == decoder.embedding.table[...].nbytes
    assert {"loading the drafter", "compiling drafts"} <= set(stages)
    drafter.stop()
