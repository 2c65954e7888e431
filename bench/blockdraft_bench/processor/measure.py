"""A row for each number of cores, and how one is measured."""

import datetime
import functools
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax

from blockdraft_bench.common.answers import DRAFTED, PLAIN, Answer, speed
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.common.prompts import Prompt
from blockdraft_bench.common.provenance import Drafter, Target, origin
from blockdraft_bench.common.run import Outcome, Run
from blockdraft_bench.common.settings import OutputSettings
from blockdraft_bench.common.statistics import median
from blockdraft_bench.engine.decoding import InProcessDecoder
from blockdraft_bench.engine.sample_decoder import SampleDecoder
from blockdraft_bench.engine.samples import Limits, Sample
from blockdraft_bench.processor.command import ProcessorSettings
from blockdraft_bench.processor.report import ProcessorReport, ProcessorRow, markdown
from blockdraft_client.cli.demo import DEFAULT_PROMPT
from blockdraft_drafter.app import load_method
from blockdraft_models.executables import keep_executables
from blockdraft_models.precision import cpu_bfloat16_speedup, serving_dtype
from blockdraft_models.processor import this_processor
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.self_test import AT_START, ON_REQUEST, enforce


def measure_rows(settings: ProcessorSettings, run: Run) -> Outcome:
    """Measure every row in a process of its own, and report.

    Raises:
        BrokenProcessPool: If such a process dies.
    """
    measuring = run.phase("measuring", total=len(settings.cores) or 1)
    rows = []
    for cores in settings.cores or (None,):
        rows.append(_in_own_process(settings, cores))
        measuring.advance()
    report = ProcessorReport(
        **origin(run.commit),
        target=rows[0].target,
        date=datetime.date.today().isoformat(),
        rows=tuple(rows),
    )
    # Not before: there is nothing that an interrupted run could go on from.
    run.identify(report.target, rows[0].drafter, replace(settings, result=OutputSettings()))
    return Outcome(report, markdown(report))


def _in_own_process(settings: ProcessorSettings, cores: int | None) -> ProcessorRow:
    limit = None
    if cores is not None:
        # Before jax is imported: how many threads compute is settled when it starts.
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        limit = functools.partial(os.sched_setaffinity, 0, chosen)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), limit) as executor:
        return executor.submit(measure_here, settings).result()


def measure_here(settings: ProcessorSettings) -> ProcessorRow:
    """Measure a row with the cores that this process may use.

    With `again` it changes the environment, where the kept measurements are looked for.

    Raises:
        BenchUsageError: If jax computes on something else than a CPU.
        InexactError: If no padding makes steps in bfloat16 round alike.
        ModelError: If target or drafter cannot be loaded.
    """
    if jax.default_backend() != "cpu":
        raise BenchUsageError("this measures a CPU: set JAX_PLATFORMS=cpu")
    processor = this_processor()
    keep_executables()
    target = resolve_target(settings.target)
    span = AT_START if settings.quick else ON_REQUEST
    with tempfile.TemporaryDirectory() as fresh:
        if settings.again:
            os.environ["BLOCKDRAFT_CACHE"] = fresh
        test = functools.partial(enforce, allow_inexact=False, span=span)
        engine = _load(settings, target, "bfloat16", test)
        forms, found = engine.runner.product_forms, engine.exactness
        assert found is not None
        auto, speedup = serving_dtype("auto").name, cpu_bfloat16_speedup()
        if auto != "bfloat16":
            del engine
            engine = _load(settings, target, "auto")
    answers, drafter = _answer(settings, target, engine), engine.drafter
    engine.close()
    return ProcessorRow(
        target=Target.of(engine.target),
        drafter=Drafter(drafter.method, drafter.fingerprint, drafter.trained),
        processor=processor,
        auto=auto,
        bfloat16_speedup=speedup,
        product_forms=forms,
        self_test=found.summary(),
        plain_tokens_per_second=median(speed([each[PLAIN]]) for each in answers),
        drafted_tokens_per_second=median(speed([each[DRAFTED]]) for each in answers),
        identical=len({one.token_ids for each in answers for one in each.values()}) == 1,
    )


def _load(
    settings: ProcessorSettings,
    target: Path,
    dtype: Dtype,
    self_test: Callable[[ModelRunner], Exactness] | None = None,
) -> InProcessDecoder:
    """Load target and drafter with the limits and the draft policy of `blockdraft serve`."""
    room = settings.max_sequences
    decoder, checkpoint = load_decoder(target, dtype=serving_dtype(dtype))
    drafting = DrafterSettings(
        target=str(target), drafter=settings.drafter, max_sequences=room, dtype=dtype
    )
    config = EngineSettings(scheduler=SchedulerSettings(max_sequences=room), dtype=dtype)
    engine = InProcessDecoder(decoder, checkpoint, load_method(drafting), config, self_test)
    engine.warm_up()
    return engine


def _answer(
    settings: ProcessorSettings, target: Path, engine: InProcessDecoder
) -> list[dict[str, Answer]]:
    """Return the greedy answers to the demo's prompt, round by round."""
    tokenizer = load_tokenizer(target)
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": DEFAULT_PROMPT}]))
    limits = Limits(settings.max_tokens, frozenset(tokenizer.eos_token_ids))
    request = limits.request("demo", Prompt("demo", prompt))
    plain = functools.partial(engine.decode_alone, max_draft_tokens=0)
    decoder = SampleDecoder({PLAIN: plain, DRAFTED: engine.decode_alone})
    rounds = [Sample("demo", number, request) for number in range(settings.rounds)]
    answers: list[dict[str, Answer]] = []
    decoder((PLAIN, DRAFTED), rounds, lambda _, found: answers.append(found))
    return answers
