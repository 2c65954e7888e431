"""What the host spends on a step: time of its main thread, beside the time that the step takes.

Blocks of drafts by the runner alone; plain decoding by the engine, with steps ahead and without.

`JAX_PLATFORMS=cpu python -m tests.eight_devices.host_path 8`, for so many simulated devices.
"""

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from prometheus_client import CollectorRegistry
from tests.models.builders import random_decoder
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_models.decoder.scanned import ScannedDecoder
from blockdraft_models.decoder.sharding import Placement, model_mesh
from blockdraft_models.weights.loading import load_decoder
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket
from blockdraft_verifier.device.feature_form import FeatureForm
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.engine.ahead import MAX_STEPS
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence

BLOCK, CONTEXT, PAGE_SIZE, RUNS = 16, 1024, 32, 40

SEQUENCES = (1, 16, 64)
LIMITS = SchedulerSettings(max(SEQUENCES), max(SEQUENCES) * BLOCK, max_context_tokens=8192)


def drafted_row(number: int) -> Row:
    """Return a block of drafts after a context."""
    pages = CONTEXT // PAGE_SIZE + 1
    request = GenerationRequest("measured", (1,) * (CONTEXT + 1))
    sequence = TokenSequence(number, request, 0.0, pages=[number * pages + i for i in range(pages)])
    return Row(sequence, CONTEXT, (1,) * BLOCK, BLOCK - 1)


def main() -> None:
    """Print medians in milliseconds."""
    placement = Placement(model_mesh(jax.devices()))
    config = tiny_config("qwen3", vocab_size=264, num_heads=8, num_kv_heads=8, num_layers=2)
    with tempfile.TemporaryDirectory() as folder:
        write_hf_checkpoint(random_decoder(config), Path(folder))
        loaded, _ = load_decoder(Path(folder), dtype=jnp.float32, placement=placement)
    decoder = ScannedDecoder(loaded, placement)
    pages = max(SEQUENCES) * (CONTEXT // PAGE_SIZE + 1)
    settings = EngineSettings(scheduler=LIMITS, page_size=PAGE_SIZE, num_pages=pages)
    runner = ModelRunner(decoder, settings, placement.mesh)
    buckets = tuple(Bucket(count, count * BLOCK, count * BLOCK) for count in SEQUENCES)
    with patch("blockdraft_verifier.device.runner.all_buckets", return_value=buckets):
        runner.compile(FeatureForm((0,)), BLOCK)
    print(f"{len(jax.devices())} devices, {jnp.dtype(runner.dtype).name}")
    for count in SEQUENCES:
        rows = [drafted_row(number) for number in range(count)]
        host, wall = [], []
        for _ in range(RUNS):
            started, thread_started = time.perf_counter(), time.thread_time()
            runner.run(rows)
            host.append(time.thread_time() - thread_started)
            wall.append(time.perf_counter() - started)
        milliseconds = [1e3 * statistics.median(times) for times in (host, wall)]
        print("{} sequences: main thread {:.2f} ms, step {:.2f} ms".format(count, *milliseconds))
    engine = plain_engine(decoder, placement.mesh, settings)
    for count in SEQUENCES:
        for most in (0, MAX_STEPS):
            with patch("blockdraft_verifier.engine.ahead.MAX_STEPS", most):
                milliseconds = list(decode(engine, count))
            print(f"{count} decoded plainly, up to {most} steps ahead: ", end="")
            print("main thread {:.2f} ms, step {:.2f} ms".format(*milliseconds))


def plain_engine(decoder: ScannedDecoder, mesh: Mesh, settings: EngineSettings) -> Engine:
    """Return an engine with the shapes that plain decoding needs."""
    settings = replace(settings, prompt_lookup=False)
    runner, metrics = ModelRunner(decoder, settings, mesh), VerifierMetrics(CollectorRegistry())
    engine = Engine(runner, settings, None, decoder.config.vocab_size, metrics)
    buckets = tuple(Bucket(64, tokens, 64) for tokens in (64, max(SEQUENCES) * BLOCK))
    with patch("blockdraft_verifier.device.runner.all_buckets", return_value=buckets):
        engine.warm_up()
    return engine


def decode(engine: Engine, count: int) -> tuple[float, float]:
    """Decode plainly; return the milliseconds of a step, of the main thread and in all."""
    requests = [
        GenerationRequest("measured", (1,) * 16, max_output_tokens=RUNS, max_draft_tokens=0)
        for _ in range(count)
    ]
    for request in requests:
        engine.submit(request, lambda event: None)
    engine.step()
    started, thread_started, steps = time.perf_counter(), time.thread_time(), 0
    while engine.step():
        steps += 1
    host, wall = time.thread_time() - thread_started, time.perf_counter() - started
    return 1e3 * host / steps, 1e3 * wall / steps


if __name__ == "__main__":
    main()
