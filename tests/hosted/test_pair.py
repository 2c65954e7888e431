"""A target that hosts its drafter says what it says alone."""

from pathlib import Path

from flax import nnx
from tests.hosted.pair import completions, threaded
from tests.models.tiny import write_hf_checkpoint
from tests.verifier.support import tiny_decoder

from blockdraft_models.memory import device_bytes


def test_drafting_never_changes_a_completion(tmp_path: Path) -> None:
    plain, none = completions(tmp_path / "plain", None)
    hosted, drafted = completions(tmp_path / "hosted", "random:3")
    assert hosted == plain
    assert none == 0 < drafted


def test_the_target_s_embedding_is_not_loaded_twice(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    write_hf_checkpoint(decoder, tmp_path)
    drafter = threaded(tmp_path, "random:3", "float32")
    arrays, weights = drafter.load(decoder), nnx.state(decoder)
    together, apart = device_bytes((weights, arrays)), device_bytes(weights) + device_bytes(arrays)
    assert apart - together == decoder.embedding.table[...].nbytes
    drafter.stop()
