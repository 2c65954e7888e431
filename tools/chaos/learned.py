"""What learning left behind, judged by what was asked and by what the processes said."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
from tools.chaos.learning import BLOCK_SIZE, LIMIT_BYTES, Versions, Watch
from tools.chaos.stack import Stack
from tools.chaos.wanted import Wanted

from blockdraft_client import Completion
from blockdraft_drafter.learning.samples import SampleError, SampleStore, TrainingSample
from blockdraft_drafter.learning.versions import VersionStore
from blockdraft_drafter.sources import load_any
from blockdraft_models.errors import ModelError
from blockdraft_models.weights.loading import load_checkpoint_config

# A trainer that was killed starts again after a pause, and compiles.
PATIENT_SECONDS = 240.0
# On a quick machine all requests are answered before a version is loaded or a trainer is back: then
# they come again, and so does another version.
AGAIN_SECONDS = 10.0
_SAID = {
    "swaps": "drafting with version",
    "refused": r"version \d+ is refused",
    "evaluations": "held-out sequences, .* that serves",
    "promoted": r"version \d+ is promoted",
}


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned, and what of it must not be."""

    exchanges: int  # how often another version was to serve
    swaps: int  # how often one took another's place between two steps
    refused: int  # how often one was refused
    samples: int  # sequences that were recorded
    trainer_restarts: int  # how often the trainer was started again
    steps: int  # steps that it made
    evaluations: int  # comparisons on held-out samples
    promoted: int  # versions that it promoted
    wrong: Sequence[str]  # what must not be, in words


async def what_was_learned(
    stack: Stack,
    versions: Versions,
    watch: Watch,
    steps: int,
    asked: Sequence[Wanted],
    true: Sequence[Completion],
    ask_again: Callable[[], Awaitable[None]],
) -> Learned:
    """Look at everything that learning left, once the faults are over."""
    folder = stack.learning / "samples"
    started = time.monotonic()
    again = started + AGAIN_SECONDS
    while True:
        serving = int(await stack.metric("drafter", "blockdraft_drafter_version"))
        wrong = [
            *wrong_versions(versions.store, stack.target, serving),
            *wrong_samples(folder, LIMIT_BYTES, asked, true),
        ]
        if watch.steps() <= steps:
            wrong.append(f"no step was made after the faults, {steps} before")
        log = stack.log.read_text(encoding="utf-8", errors="replace")
        said = {name: len(re.findall(pattern, log)) for name, pattern in _SAID.items()}
        wrong += [f"no {name}" for name in ("swaps", "evaluations") if not said[name]]
        # What is being exchanged, deleted or learned just now is nothing wrong.
        if not wrong or time.monotonic() > started + PATIENT_SECONDS:
            break
        idle = watch.steps() <= steps or not said["swaps"]
        if idle and time.monotonic() > again:
            await asyncio.to_thread(versions.exchange)
            await ask_again()
            again = time.monotonic() + AGAIN_SECONDS
        await asyncio.sleep(0.5)
    if watch.most_bytes > LIMIT_BYTES:
        wrong.append(f"samples of {watch.most_bytes} bytes at some time")
    return Learned(
        exchanges=versions.exchanges,
        samples=len(watch.recorded),
        trainer_restarts=len(watch.trainers) - 1,
        steps=watch.steps(),
        wrong=wrong,
        **said,
    )


def wrong_samples(
    folder: Path, limit_bytes: int, asked: Sequence[Wanted], true: Sequence[Completion]
) -> Iterator[str]:
    """Yield what is wrong with the samples in a folder."""
    samples = SampleStore(folder, limit_bytes)
    if samples.size_bytes() > limit_bytes:
        yield f"samples of {samples.size_bytes()} bytes"
    if not samples.names():
        yield "no samples"
    for name in samples.names():
        try:
            found = _wrong(samples.read(name), asked, true)
        except SampleError as error:
            found = str(error)
        if found:
            yield f"sample {name}: {found}"


def _wrong(
    sample: TrainingSample, asked: Sequence[Wanted], true: Sequence[Completion]
) -> str | None:
    """Return what is wrong with a sample: it is of a request that allows it, and true."""
    ids = sample.token_ids.tolist()
    try:
        # Bytes are tokens here, and a prompt begins with the number of its request.
        number = int(bytes(ids[: ids.index(ord(":"))]))
        prompt = list(asked[number].prompt.encode())
    except (ValueError, IndexError):
        return "it is of no request"
    if asked[number].excluded:
        return f"request {number} is excluded"
    # The sample of a sequence that ended in its prompt has no completion.
    if sample.completion_start != min(len(prompt), len(ids)):
        return f"the completion of request {number} is said to start at {sample.completion_start}"
    expected = [*prompt, *true[number].token_ids]
    # After a stop sequence the target may have gone on, and a sample may end early.
    if any(ours != theirs for ours, theirs in zip(ids, expected, strict=False)):
        return f"request {number} has other tokens"
    return None


def wrong_versions(store: VersionStore, target: Path, serving: int) -> Iterator[str]:
    """Yield what is wrong with a store of versions."""
    current = store.current()
    if current is None:
        yield "no version shall serve"
        return
    if serving != current.number:
        yield f"version {serving} serves instead of {current.number}"
    folders = {int(path.name) for path in store.path(1).parent.iterdir() if path.name.isdigit()}
    if unreadable := folders - {each.number for each in store.list()}:
        yield f"versions {sorted(unreadable)} cannot be read"
    try:
        load_any(
            store.path(current.number),
            load_checkpoint_config(target),
            block_size=BLOCK_SIZE,
            dtype=jnp.float32,
        )
    except ModelError as error:
        yield f"version {current.number} cannot be loaded: {error}"
