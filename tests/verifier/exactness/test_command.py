"""`blockdraft verifier --self-test`."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.verifier.support import TINY_ENGINE

from blockdraft_models.decoder.model import Decoder
from blockdraft_runtime.settings.verifier import (
    CacheSettings,
    SchedulerSettings,
    SliceSettings,
    VerifierSettings,
)
from blockdraft_verifier import command
from blockdraft_verifier import self_test as module
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.exactness import find_classes


@pytest.fixture
def settings(tmp_path: Path) -> VerifierSettings:
    decoder = Decoder(tiny_config(num_layers=1), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    write_hf_checkpoint(decoder, tmp_path)
    # Few shapes to compile.
    engine = replace(TINY_ENGINE, dtype="float32", scheduler=SchedulerSettings(2, 4, 96))
    cache = CacheSettings(max_model_len=96, num_pages=engine.num_pages)
    return VerifierSettings(target=str(tmp_path), cache=cache, engine=engine, self_test=True)


def test_it_says_what_holds_here(
    settings: VerifierSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    status = command.run_self_test(settings)
    words = capsys.readouterr().out
    assert (status, "inexact" in words) in ((0, False), (1, True))
    assert "exact in float32" in words


def test_steps_that_differ_are_named_and_end_with_1(
    settings: VerifierSettings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find_classes("float32", {Bucket(1, 1, 1): [b"a"], Bucket(1, 2, 2): [b"b"]})
    monkeypatch.setattr(module, "self_test", lambda runner, span: found)
    assert command.run_self_test(settings) == 1
    assert capsys.readouterr().out == f"{found.summary()}\n"


def test_a_slice_is_refused() -> None:
    slice_settings = SliceSettings("host:1", num_processes=2, process_id=0)
    with pytest.raises(ValueError, match="--self-test is for one host"):
        command.run_self_test(VerifierSettings(slice=slice_settings, self_test=True))
