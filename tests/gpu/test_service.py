"""The service on a GPU, where there is one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.models.builders import random_decoder
from tests.models.tiny import LIKE_GPT_OSS, tiny_config, write_hf_checkpoint

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no GPU")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("like", [{}, LIKE_GPT_OSS], ids=["Llama", "gpt-oss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafting_does_not_change_what_a_gpu_writes(
    tmp_path: Path, like: dict[str, Any], dtype: str
) -> None:
    shape = {"hidden_size": 64, "num_heads": 4, "head_dim": 16, "num_layers": 2, **like}
    decoder = random_decoder(tiny_config(vocab_size=512, **shape))
    write_hf_checkpoint(decoder, tmp_path / "target")
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cuda", "BLOCKDRAFT_SERVE_DTYPE": dtype}
    environment |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".05"}
    command = [sys.executable, "-m", "blockdraft", "demo", "--json", "--drafter", "random"]
    demo = subprocess.run(
        [*command, "--model", str(tmp_path / "target"), "--prompt", "abc"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert demo.returncode == 0, demo.stderr
    assert json.loads(demo.stdout)["identical"]
