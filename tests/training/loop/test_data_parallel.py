"""A batch split over devices trains like one on a single device."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.conftest import CACHE
from tests.training.pair import Pair, reporter

from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe

DEVICES = 8
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_eight_devices_train_like_one(pair: Pair, tmp_path: Path) -> None:
    settings = pair.settings(tmp_path / "eight", batch_size=DEVICES)
    pickled = tmp_path / "settings"
    pickled.write_bytes(pickle.dumps(settings))
    flags = f"--xla_force_host_platform_device_count={DEVICES} {os.environ.get('XLA_FLAGS', '')}"
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
    }
    process = subprocess.run(
        [sys.executable, "-m", "tests.training.short_run", str(pickled)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["refusal"] == f"batch_size {DEVICES - 1} cannot be split over {DEVICES} devices"
    assert jax.device_count() == 1
    alone = train(DFlashRecipe(pair.settings(tmp_path / "one", batch_size=DEVICES)), reporter())
    losses = [entry["loss"] for entry in alone.history]
    np.testing.assert_allclose(result["losses"], losses, rtol=1e-4)
