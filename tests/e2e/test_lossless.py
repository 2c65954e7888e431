"""Drafting never changes what the target says: any drafter, any concurrency, any temperature."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from flax import nnx
from prometheus_client import CollectorRegistry, Counter
from tests.fakes.drafting import ScriptedMethod, SessionLink, describe
from tests.models.tiny import write_hf_checkpoint
from tests.training.pair import reporter, write_rows
from tests.verifier.exactness.contract import Contract
from tests.verifier.support import (
    LAYER_IDS,
    Outcome,
    finish,
    repairs_of,
    tiny_decoder,
)

from blockdraft_drafter.app import load_method
from blockdraft_drafter.checkpoint import save_drafter
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_drafter.method import DraftMethod
from blockdraft_models.precision import compute_dtype
from blockdraft_models.sampling_options import Sampling
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.settings.drafter import DrafterSettings, SentForm
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import EngineSettings, SchedulerSettings
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.export import export_drafter
from blockdraft_training.loop.run import train
from blockdraft_training.methods.dflash import DFlashRecipe
from blockdraft_training.settings import DFlashSettings
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.drafting.link import DraftLink
from blockdraft_verifier.engine.loop import Engine
from blockdraft_verifier.engine.metrics import VerifierMetrics
from blockdraft_verifier.scheduling.sequence import GenerationRequest
from blockdraft_verifier.self_test import self_test

SHARED = Path(os.environ.get("BLOCKDRAFT_SHARED", Path(__file__).parents[3] / "shared"))
SAMPLED = Sampling(temperature=0.7, top_p=0.9, seed=20260211)
BLOCK_SIZE = 4


def dataset_prompts(count: int) -> list[str]:
    """Return `count` prompts, in turn from each of the datasets; made-up long ones without them."""
    files = sorted(SHARED.glob("datasets/*.jsonl"))
    if not files:
        return [f"What is {i} times {i + 7}? Explain step by step. " * 8 for i in range(count)]
    lines = [path.read_text(encoding="utf-8").splitlines() for path in files]
    turns = [lines[i % len(files)][i // len(files)] for i in range(count)]
    return [json.loads(line)["turns"][0] for line in turns]


class Setting:
    """A target, engines over it and requests for it."""

    def __init__(
        self, path: Path, config: EngineSettings, requests: int, prompt_tokens: int, output: int
    ) -> None:
        self.path = path
        self.config = config
        self.decoder, self.checkpoint = load_decoder(path, dtype=compute_dtype(config.dtype))
        tokenizer = load_tokenizer(path)
        # Each prompt greedily and sampled, one after the other: the second finds it in the cache.
        texts = [text for text in dataset_prompts(-(-requests // 2)) for _ in range(2)][:requests]
        self.requests = [
            GenerationRequest(
                f"r{index}",
                # The end of the prompt, chat markup included, when it is too long.
                tuple(tokenizer.encode_chat([{"role": "user", "content": text}])[-prompt_tokens:]),
                sampling=Sampling() if index % 2 else replace(SAMPLED, seed=SAMPLED.seed + index),
                max_output_tokens=output,
            )
            for index, text in enumerate(texts)
        ]

    def engine(self, link: DraftLink) -> Engine:
        metrics = VerifierMetrics(CollectorRegistry())
        runner = ModelRunner(self.decoder, self.config)
        vocab_size = self.decoder.config.vocab_size
        engine = Engine(runner, self.config, link, vocab_size, metrics)
        engine.warm_up()
        return engine

    def answers(
        self,
        engine: Engine,
        concurrency: int,
        max_draft: int | None,
        told: Sequence[Sequence[int]] | None = None,
    ) -> list[Outcome]:
        """Decode all requests, `concurrency` at a time, after the tokens told already, if any."""
        outcomes = [Outcome() for _ in self.requests]
        requests = [
            replace(
                request,
                max_draft_tokens=max_draft,
                emitted=tuple(told[index]) if told is not None else (),
            )
            for index, request in enumerate(self.requests)
        ]
        for first in range(0, len(requests), concurrency):
            chunk = slice(first, first + concurrency)
            for request, outcome in zip(requests[chunk], outcomes[chunk], strict=True):
                engine.submit(request, outcome)
            finish(engine)
        return outcomes

    def drafter(self, spec: str, feature_form: SentForm = "projected") -> DraftMethod:
        config = DrafterSettings(
            target=str(self.path),
            drafter=spec,
            max_sequences=self.config.scheduler.max_sequences,
            max_model_len=self.config.scheduler.max_context_tokens,
            max_feature_rows=self.config.scheduler.max_step_tokens,
            feature_form=feature_form,
            block_size=BLOCK_SIZE,
            dtype=self.config.dtype,
        )
        return load_method(config).method

    def wrong_drafter(self, layer_ids: tuple[int, ...]) -> ScriptedMethod:
        """Drafts what is never right: each anchor's successor in the vocabulary."""
        vocab_size = self.decoder.config.vocab_size
        return ScriptedMethod(
            lambda position, anchor, length: [(anchor + 1 + i) % vocab_size for i in range(length)],
            layer_ids=layer_ids,
            hidden_size=self.decoder.config.hidden_size,
            vocab_size=vocab_size,
            block_size=BLOCK_SIZE,
            max_sequences=16,
            max_context_tokens=self.config.scheduler.max_context_tokens,
            max_feature_rows=64,
        )


def check_lossless(setting: Setting, drafters: dict[str, DraftMethod]) -> dict[str, float]:
    """Compare every drafter's output with plain decoding; return each drafter's τ.

    There are too few pages for a crowd, so that some are preempted, and enough of them for
    beginnings to be found in the prefix cache.
    """
    acceptance = {}
    most = setting.config.scheduler.max_sequences
    expected: list[list[int]] | None = None
    happened = {"preempted": 0.0, "cached": 0.0}
    for name, method in drafters.items():
        engine = setting.engine(SessionLink(method))
        if expected is None:
            plain = setting.answers(engine, 1, max_draft=0)
            expected = [outcome.tokens for outcome in plain]
            crowd = setting.answers(engine, most, max_draft=0)
            assert [outcome.tokens for outcome in crowd] == expected
        for concurrency in (1, most):
            outcomes = setting.answers(engine, concurrency, max_draft=None)
            assert [outcome.tokens for outcome in outcomes] == expected, (name, concurrency)
            assert repairs_of(engine) == 0
        half = [tokens[: len(tokens) // 2] for tokens in expected]
        resumed = setting.answers(engine, most, None, half)
        assert [a + b.tokens for a, b in zip(half, resumed, strict=True)] == expected, name
        usages = [outcome.usage for outcome in outcomes]
        accepted = sum(sum(usage.accepted_per_position) for usage in usages)
        acceptance[name] = 1 + accepted / sum(usage.verification_steps for usage in usages)
        happened["preempted"] += count(engine.metrics.preemptions)
        happened["cached"] += count(engine.metrics.cached_tokens)
        engine.stop()
    assert all(happened.values()), happened
    return acceptance


def count(counter: Counter) -> float:
    """Return what a counter has counted."""
    [family] = counter.collect()
    return family.samples[0].value


def engine_config(
    sequences: int,
    step_tokens: int,
    context_tokens: int,
    num_pages: int,
    dtype: Dtype = "float32",
) -> EngineSettings:
    return EngineSettings(
        num_pages=num_pages,
        dtype=dtype,
        scheduler=SchedulerSettings(sequences, step_tokens, context_tokens),
        draft_policy="fixed",
        prompt_lookup=False,
        # Prompts take all the room there is, however long steps took when they were measured: who
        # is preempted must not depend on the machine.
        prompt_slowdown=1000.0,
    )


def train_on_answers(setting: Setting, folder: Path, link: DraftLink) -> None:
    """Train a drafter on what the target says to the very requests it will be used for."""
    answers = setting.answers(setting.engine(link), 16, max_draft=0)
    rows = [
        CorpusRow(each.request_id, "", each.sampling.temperature, each.prompt, tuple(said.tokens))
        for each, said in zip(setting.requests, answers, strict=True)
    ]
    settings = DFlashSettings(
        corpus=(write_rows(rows, folder / "corpus.jsonl"),),
        output=folder / "run",
        target=str(setting.path),
        feature_layers=LAYER_IDS,
        block_size=BLOCK_SIZE,
        steps=150,
        batch_size=4,
        blocks_per_sequence=8,
        learning_rate=3e-3,
        distillation=0.0,
        hot_vocabulary=0,
        validation_rows=0,
    )
    recipe = DFlashRecipe(settings)
    export_drafter(train(recipe, reporter()), recipe, folder / "drafter", "")


def test_tiny_target_with_trained_random_and_wrong_drafters(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    write_hf_checkpoint(decoder, tmp_path / "target")
    # Few shapes to compile.
    config = engine_config(4, 8, 96, 8)
    setting = Setting(tmp_path / "target", config, requests=6, prompt_tokens=56, output=20)
    # The same features for two, raw ones, so that the target's steps are compiled once for them.
    wrong = setting.wrong_drafter(LAYER_IDS)
    train_on_answers(setting, tmp_path, SessionLink(wrong))
    eagle3 = Eagle3Config.default_for(
        setting.checkpoint.config, block_size=BLOCK_SIZE, target_layer_ids=LAYER_IDS
    )
    save_drafter(Eagle3(eagle3, rngs=nnx.Rngs(3)), tmp_path / "eagle3")
    drafters = {
        "wrong": wrong,
        "trained": setting.drafter(str(tmp_path / "drafter")),
        "random": setting.drafter(str(tmp_path / "eagle3"), "raw"),
    }
    acceptance = check_lossless(setting, drafters)
    # Half of the requests are sampled, from a target that is close to uniform.
    assert acceptance["wrong"] < 1.1
    assert acceptance["trained"] > 1.5


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.smollm2
@pytest.mark.timeout(3600)
def test_default_target_with_its_own_drafter_in_bfloat16() -> None:
    path = resolve_target("smollm2-135m")
    # Few shapes and prompts: thirty layers take long to compile, and prompts many steps. Of pages,
    # enough for a text and two copies of it, and too few for a crowd.
    config = engine_config(4, 8, 128, 15, "bfloat16")
    setting = Setting(path, config, requests=5, prompt_tokens=96, output=20)
    own = setting.drafter("auto")
    acceptance = check_lossless(setting, {"auto": own})
    print(acceptance)
    # Of the programs that decoded.
    runner = ModelRunner(setting.decoder, config)
    runner.compile(describe(own).features, own.spec.block_size)
    found = self_test(runner)
    assert found.exact, found.summary()
    # Into the second chunk of the context.
    contract = Contract(runner, setting.requests[0].prompt[:80])
    for seed in range(2):
        contract.check(seed)
