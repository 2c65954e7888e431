"""The settings of measurements; `blockdraft_runtime.configuration` makes flags and docs of them.

`serve.settings` has those of a service under load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockdraft_bench.datasets import OWN_SETS, TEST_SETS
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, TARGET_HELP, Dtype
from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings

RESULTS = Path("bench-results")
DRAFTER_HELP = "as `--drafter` of `blockdraft drafter`"
DTYPE_HELP = "of weights, KV cache and draft KV caches; `auto` as when serving"
BLOCK_HELP = "block of a drafter that is random or leaves it open, the anchor included"
LENGTH_HELP = "tokens of a draft; unset: all that a block holds beside its anchor"
POLICY_HELP = "`adaptive` drafts as far as measured costs say it pays; `fixed` the whole draft"
# A step of a service started here is as large as that of `blockdraft serve`.
STEP_TOKENS = SchedulerSettings().max_step_tokens

TransportName = Literal["shared-memory", "unix", "tcp"]
PeerProgram = Literal["llama.cpp", "transformers"]


def engine_settings(
    sequences: int,
    context_tokens: int,
    dtype: Dtype,
    draft_policy: DraftPolicy,
    *,
    prompt_lookup: bool,
    recent_completions: int = 0,
) -> EngineSettings:
    """Return the settings of a verifier that holds every sequence at full length.

    So none is preempted. Recent completions would draft the next round of the same prompts.
    """
    page_size = EngineSettings().page_size
    return EngineSettings(
        scheduler=SchedulerSettings(
            max_sequences=sequences,
            max_step_tokens=max(STEP_TOKENS, sequences),
            max_context_tokens=context_tokens,
        ),
        num_pages=sequences * (-(-context_tokens // page_size) + 1),
        dtype=dtype,
        draft_policy=draft_policy,
        prompt_lookup=prompt_lookup,
        recent_completions=recent_completions,
    )


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Settings of the prompts that a target answers, and of the lengths."""

    dataset: tuple[str, ...] = setting(
        ("starter",),
        f"one or more of `{'`, `'.join((*OWN_SETS, *TEST_SETS))}`, or files ending in `.jsonl` or "
        "`.jsonl.gz`; those after the second are published sets, which are not included",
        metavar="SET",
    )
    datasets_dir: Path | None = setting(
        None,
        "where the published sets lie as `NAME.jsonl`; unset: $BLOCKDRAFT_DATASETS or `./datasets`",
        metavar="DIR",
    )
    samples: int = setting(
        8,
        "rows of each dataset, one from each of as many stretches of the file; all if it has no "
        "more",
        minimum=1,
    )
    max_tokens: int = setting(128, "maximum tokens of a completion", minimum=1)
    max_prompt_tokens: int = setting(
        512,
        "maximum tokens of a prompt; a longer message loses its end, the chat template stays whole",
        minimum=1,
    )
    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    seed: int = setting(0, "of the choice of rows, of sampling and of intervals")

    @property
    def context_tokens(self) -> int:
        """Most tokens of a prompt and its completion."""
        return self.max_prompt_tokens + self.max_tokens

    def check_timed(self) -> None:
        """Check that completions take time after their first token."""
        if self.max_tokens < 2:
            raise ValueError(f"--max-tokens must be at least 2, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Settings of the output."""

    output: Path | None = setting(
        None,
        f"folder for the files; unset: one under `./{RESULTS}` named after date and settings",
        metavar="DIR",
    )
    json: bool = setting(False, "print the JSON report instead of Markdown")


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """Settings of `bench decode`."""

    prompts: PromptSettings = group(PromptSettings)
    drafter: tuple[str, ...] = setting(
        ("auto",),
        f"one or more drafters, each {DRAFTER_HELP}, or `none`; plain decoding is always measured",
        distinct=True,
        metavar="SPEC",
    )
    prompt_lookup: bool = setting(True, "draft from earlier text too")
    block_size: int = setting(8, BLOCK_HELP, minimum=2)
    draft_length: int | None = setting(None, LENGTH_HELP, minimum=1)
    draft_policy: DraftPolicy = setting("adaptive", POLICY_HELP)
    temperature: tuple[float, ...] = setting(
        (0.0,), "one or more, of the target; 0 is greedy", minimum=0, distinct=True
    )
    top_p: float = setting(
        1.0,
        "probability mass of likeliest tokens that sampling keeps; 1 keeps all",
        above=0,
        maximum=1,
    )
    concurrency: int = setting(
        1, "prompts answered at a time; changes the speed, not the completions", minimum=1
    )
    dtype: Dtype = setting("auto", DTYPE_HELP)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check that the parts agree with each other."""
        self.prompts.check_timed()


@dataclass(frozen=True, slots=True)
class PeersSettings:
    """Settings of `bench peers`."""

    prompts: PromptSettings = group(PromptSettings)
    rounds: int = setting(7, "how often every decoder answers every prompt", minimum=1)
    drafter: str = setting("auto", DRAFTER_HELP, metavar="SPEC")
    peer: tuple[PeerProgram, ...] = setting(
        ("llama.cpp", "transformers"),
        "one or both; what is not there yet is fetched into the cache folder",
        distinct=True,
    )
    dtype: Dtype = setting(
        "auto",
        "element type in this project and in transformers; `auto` as when serving. llama.cpp "
        "computes with bfloat16, with Q8_0 and with the file as it is",
    )
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check that the parts agree with each other."""
        self.prompts.check_timed()


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """Settings of `bench processor`."""

    cores: tuple[int, ...] = setting(
        (),
        "one or more numbers of cores, each measured in a process of its own that may use only as "
        "many; unset: all that this process may use",
        minimum=1,
        distinct=True,
    )
    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    drafter: str = setting("auto", DRAFTER_HELP, metavar="SPEC")
    result: OutputSettings = group(OutputSettings)


@dataclass(frozen=True, slots=True)
class KFlatSettings:
    """Settings of `bench kflat`."""

    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", metavar="SPEC")
    max_tokens: int = setting(
        1024, "maximum tokens of a step, K; steps have 1, 2, 4, ... tokens up to it", minimum=2
    )
    context_tokens: tuple[int, ...] = setting(
        (128, 1024),
        "one or more numbers of tokens that each sequence has in the cache",
        minimum=0,
        distinct=True,
    )
    batch: tuple[int, ...] = setting(
        (1, 4),
        "one or more numbers of sequences, powers of two; the tokens of a step are split evenly",
        minimum=1,
        distinct=True,
    )
    runs: int = setting(7, "timed runs of each step, in rounds over all", minimum=1)
    dtype: Dtype = setting("auto", "element type of weights and cache; `auto` as when serving")
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check that the parts agree with each other."""
        for batch in self.batch:
            if batch > self.max_tokens or batch & (batch - 1):
                raise ValueError(
                    "--batch must be powers of two up to --max-tokens "
                    f"({self.max_tokens}), got {batch}"
                )


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings of `bench link`."""

    width: tuple[int, ...] = setting(
        (2880, 4096, 20480),
        "one or more numbers of elements of a feature; each has two bytes",
        minimum=1,
        distinct=True,
    )
    sequences: tuple[int, ...] = setting(
        (1, 8, 32, 64), "one or more numbers of sequences", minimum=1, distinct=True
    )
    transport: tuple[TransportName, ...] = setting(
        ("shared-memory",),
        "one or more ways between the processes: a unix socket with features in shared memory, as "
        "`serve` uses it, or with features in the messages; `tcp`, over loopback, is what a "
        "drafter on another host would use",
        distinct=True,
    )
    runs: int = setting(50, "timed round trips of each point, in rounds over all", minimum=1)
    result: OutputSettings = group(OutputSettings)


@dataclass(frozen=True, slots=True)
class SchemasSettings:
    """Settings of `bench schemas`."""

    schemas: Path | None = setting(
        None, "a `.jsonl.gz` of schemas; unset: those that come with the package", metavar="FILE"
    )
    family: tuple[str, ...] = setting(
        (), "one or more families of schemas; unset: all in the file", distinct=True
    )
    samples: int = setting(
        50, "schemas of each family, spread evenly; all if it has no more", minimum=1
    )
    answers: int = setting(2, "answers to each schema, without --address", minimum=1)
    max_tokens: int = setting(256, "maximum tokens of an answer", minimum=1)
    draft_length: int = setting(15, "tokens of the drafts whose masks are timed", minimum=1)
    target: str = setting(
        DEFAULT_TARGET,
        f"{TARGET_HELP}; of its files only the tokenizer is read",
        alias="model",
        metavar="SPEC",
    )
    seed: int = setting(0, "of the choice of schemas and of random tokens")
    address: str | None = setting(
        None,
        "a running service to ask, `host:port` or `unix:/path`, with $BLOCKDRAFT_API_KEY; unset: "
        "answers are random tokens that the schema allows",
    )
    unconstrained: bool = setting(
        False, "with --address: ask for the schema without constraining the answer to it"
    )
    max_prompt_characters: int = setting(
        4000, "with --address: most of a prompt; a longer one loses its end", minimum=1
    )
    concurrency: int = setting(4, "with --address: requests in flight", minimum=1)
    timeout_seconds: float = setting(300.0, "with --address: deadline of each request", above=0)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check that the parts agree with each other."""
        if self.unconstrained and self.address is None:
            raise ValueError("--unconstrained is for a service: say --address")
