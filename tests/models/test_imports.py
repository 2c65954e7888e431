"""A process that only handles text loads no accelerator stack."""

import subprocess
import sys

CODE = """
import sys
import blockdraft_models.cache, blockdraft_models.decoder.config, blockdraft_models.errors
import blockdraft_models.tokenizer.tokenizer, blockdraft_models.weights.gguf_header
import blockdraft_models.weights.resolve
print(sorted({'jax', 'flax', 'numpy'} & sys.modules.keys()))
"""


def test_light_modules_load_neither_jax_nor_flax() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
