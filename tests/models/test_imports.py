"""A process that only handles text loads no accelerator stack."""

import subprocess
import sys

import pytest

LIGHT = [
    "",
    ".decoder.config",
    ".tokenizer.tokenizer",
    ".weights.gguf_header",
    ".cache",
    ".weights.resolve",
    ".errors",
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_neither_jax_nor_flax(module: str) -> None:
    code = (
        f"import sys, blockdraft_models{module};"
        "print(sorted({'jax', 'flax', 'numpy'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
