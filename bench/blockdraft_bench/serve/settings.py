"""The settings of `blockdraft bench serve`, and values derived from them; needs no jax."""

import math
from dataclasses import dataclass
from pathlib import Path

from blockdraft_bench.serve.record import LoadLevel, Method, RequestRecord
from blockdraft_bench.settings import (
    DRAFTER_HELP,
    DTYPE_HELP,
    POLICY_HELP,
    OutputSettings,
    PromptSettings,
    engine_settings,
)
from blockdraft_runtime.configuration.definition import group, setting
from blockdraft_runtime.settings.process import Dtype
from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings

DEFAULT_CONCURRENCY = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Objectives:
    """The limits of a good completion."""

    slo_ttft_seconds: float | None = setting(
        None, "longest time to the first token of a good completion", above=0
    )
    slo_tpot_seconds: float | None = setting(None, "longest time per token after it", above=0)

    @property
    def has_slo(self) -> bool:
        """Whether any limit is set."""
        return self.slo_ttft_seconds is not None or self.slo_tpot_seconds is not None

    def met_by(self, record: RequestRecord) -> bool:
        """Return whether a completion is complete and within both objectives."""
        if not record.succeeded:
            return False
        tpot = record.tpot
        return (self.slo_ttft_seconds is None or record.ttft <= self.slo_ttft_seconds) and (
            self.slo_tpot_seconds is None or tpot is None or tpot <= self.slo_tpot_seconds
        )


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Settings of the levels of load, and of every run at them."""

    concurrency: tuple[int, ...] | None = setting(
        None,
        "closed loop: one or more numbers of requests in flight; unset: 1, 2, 4 and 8, or none "
        "with --rate",
        minimum=1,
        distinct=True,
    )
    rate: tuple[float, ...] = setting(
        (), "open loop: one or more rates, in requests per second", above=0, distinct=True
    )
    methods: tuple[Method, ...] = setting(
        ("drafted", "plain"),
        "one or more, in turn; `learning` is `drafted` with requests that are recorded, and with "
        "a trainer beside the service, which is stopped during the others",
        flag="method",
        distinct=True,
    )
    requests: int | None = setting(
        None,
        "requests of each run, as many as are in flight or more; unset: four times the "
        "number in flight or the rate, at least 8",
        minimum=1,
    )
    rounds: int = setting(
        1,
        "how often each level is measured with each method, with other prompts as far as there "
        "are some; ratios are medians over the rounds",
        minimum=1,
    )
    warm_up: int = setting(
        2, "requests of each method that come first and are not counted", minimum=0
    )
    flush_tokens: int | None = setting(
        None,
        "random prompt tokens sent before each run, so that the prefix cache holds no prompt of "
        "the run before; unset: as many as the cache holds, none with --address",
        minimum=0,
    )
    timeout_seconds: float = setting(300.0, "deadline of each request", above=0)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The numbers of requests in flight of closed loops."""
        if self.concurrency is not None:
            return self.concurrency
        return () if self.rate else DEFAULT_CONCURRENCY

    @property
    def levels(self) -> tuple[LoadLevel, ...]:
        """The levels of load, in the order in which they are measured."""
        closed = [LoadLevel("closed", float(value)) for value in self.in_flight]
        return (*closed, *(LoadLevel("open", value) for value in self.rate))

    def requests_of(self, level: LoadLevel) -> int:
        """Return the requests of a run: as set, or four times the level's value, at least 8."""
        return self.requests or max(8, math.ceil(4 * level.value))


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of the service: how to reach one that runs, or how to start one."""

    address: str | None = setting(
        None, "a running service, `host:port` or `unix:/path`; unset: one is started"
    )
    api_key: str | None = setting(
        None, "with --address: the API key; unset: $BLOCKDRAFT_API_KEY, which ps hides"
    )
    tls: bool | None = setting(
        None, "with --address: whether to encrypt; unset: as for the commands of the client"
    )
    ca_cert: Path | None = setting(
        None,
        "PEM certificates to trust; unset: $BLOCKDRAFT_CA_CERT, or else the system's",
        metavar="FILE",
    )
    client_cert: Path | None = setting(None, "PEM client certificate", metavar="FILE")
    client_key: Path | None = setting(None, "PEM key of --client-cert", metavar="FILE")
    server_name: str | None = setting(None, "name the certificate must have", metavar="NAME")
    drafter: str = setting("auto", DRAFTER_HELP, metavar="SPEC")
    no_drafter: bool = setting(False, "start the service without a drafter")
    prompt_lookup: bool = setting(False, "let the service started here draft by prompt lookup too")
    recent_completions: int = setting(
        0,
        "with --prompt-lookup: also from so many tokens of the last completions; wants --samples "
        "so many that no prompt comes twice",
        minimum=0,
    )
    dtype: Dtype = setting("auto", DTYPE_HELP)
    draft_policy: DraftPolicy = setting("adaptive", POLICY_HELP)
    max_sequences: int | None = setting(
        None,
        "sequences that the service started here decodes at once; unset: the most in flight, at "
        "least 16 with --rate",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class LoadTestSettings:
    """All settings of `blockdraft bench serve`, a load test of a service."""

    prompts: PromptSettings = group(
        lambda: PromptSettings(samples=32, max_tokens=128, max_prompt_tokens=256)
    )
    temperature: float = setting(0.0, "of the target; 0 is greedy", minimum=0)
    load: LoadSettings = group(LoadSettings)
    objectives: Objectives = group(Objectives)
    service: ServiceSettings = group(ServiceSettings)
    result: OutputSettings = group(OutputSettings)

    def __post_init__(self) -> None:
        """Check that each closed loop can have as many requests in flight as it should."""
        requests, in_flight = self.load.requests, max(self.load.in_flight, default=0)
        if requests is not None and requests < in_flight:
            raise ValueError(f"--requests {requests} cannot keep {in_flight} in flight")
        if self.learns and self.service.address is not None:
            raise ValueError("--method learning stops and continues a trainer that it started")
        if self.learns and self.service.no_drafter:
            raise ValueError("--method learning compares drafts; --no-drafter leaves none")

    @property
    def learns(self) -> bool:
        """Whether to measure a service that learns."""
        return "learning" in self.load.methods

    @property
    def engine(self) -> EngineSettings:
        """The settings of the verifier of a service started here."""
        sequences = self.service.max_sequences
        if sequences is None:
            default = [SchedulerSettings().max_sequences] if self.load.rate else []
            sequences = max([*self.load.in_flight, *default])
        return engine_settings(
            sequences,
            self.prompts.context_tokens,
            self.service.dtype,
            self.service.draft_policy,
            prompt_lookup=self.service.prompt_lookup,
            recent_completions=self.service.recent_completions,
        )

    @property
    def flush_tokens(self) -> int:
        """Random prompt tokens sent before each run."""
        if self.load.flush_tokens is not None:
            return self.load.flush_tokens
        engine = self.engine
        return engine.num_pages * engine.page_size if self.service.address is None else 0
