"""A tiny target that hosts its drafter, loaded as in service."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.models.tiny import write_hf_checkpoint
from tests.patience import PATIENCE_SECONDS
from tests.verifier.support import TINY_ENGINE, Outcome, decode, random_requests, tiny_decoder

from blockdraft_hosted.drafter import ThreadedDrafter
from blockdraft_runtime.settings.drafter import DrafterSettings, LearningSettings
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import CacheSettings, VerifierSettings
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.loading import load_target


def threaded(
    target: Path, drafter: str, dtype: Dtype = "auto", learn_dir: Path | None = None
) -> ThreadedDrafter:
    """Return a drafter of a tiny target, not loaded yet; it learns where it has a folder."""
    settings = DrafterSettings(
        str(target),
        drafter,
        max_sequences=4,
        max_model_len=96,
        dtype=dtype,
        learning=LearningSettings(enabled=learn_dir is not None, directory=learn_dir),
    )
    return ThreadedDrafter(settings, registry=CollectorRegistry())


@contextmanager
def hosting(folder: Path, drafter: str | None, learn_dir: Path | None = None) -> Iterator[Engine]:
    """Load the target with this drafter in its process, or with none; it is ready for requests."""
    write_hf_checkpoint(tiny_decoder(), folder)
    # Beside other tests a drafter takes its time.
    engine_settings = replace(
        TINY_ENGINE,
        draft_timeout_seconds=PATIENCE_SECONDS,
        draft_patience_seconds=PATIENCE_SECONDS,
    )
    cache = CacheSettings(max_model_len=96, num_pages=64)
    settings = VerifierSettings(target=str(folder), engine=engine_settings, cache=cache)
    hosted = None if drafter is None else threaded(folder, drafter, learn_dir=learn_dir)
    target = load_target(settings, drafter=hosted)
    link = None if hosted is None else hosted.connect(target.checkpoint)
    engine = Engine(
        target.runner,
        target.runner.settings,
        link,
        target.checkpoint.config.vocab_size,
        VerifierMetrics(CollectorRegistry()),
    )
    engine.warm_up()
    yield engine
    engine.stop()
    if hosted is not None:
        hosted.stop()


def completions(folder: Path, drafter: str | None) -> tuple[list[list[int]], int]:
    """Return what greedy and sampled requests get, and how many tokens were drafted for them."""
    requests = random_requests(11, count=10, max_output_tokens=24)
    with hosting(folder, drafter) as engine:
        outcomes: list[Outcome] = decode(engine, requests)
    drafted = sum(sum(outcome.usage.drafted_per_position) for outcome in outcomes)
    return [outcome.tokens for outcome in outcomes], drafted
