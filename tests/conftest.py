"""Settings every test runs under."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time on CPU is compilation of programs that run for milliseconds: with few of
# LLVM's optimizations it takes two thirds of it, and with none the tests that train take twice as
# long. Processes that tests start inherit this.
os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=1 {os.environ.get('XLA_FLAGS', '')}"

import jax

# Silent float64 or broadcasting slips are the commonest numeric bugs: make them errors.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Keep executables between runs.
CACHE = Path(__file__).parent.parent / ".cache" / "jax-tests"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
