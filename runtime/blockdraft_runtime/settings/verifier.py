"""The settings of the verifier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockdraft_runtime.configuration.definition import (
    check,
    group,
    optional_group,
    required,
    setting,
)
from blockdraft_runtime.settings.process import (
    DEFAULT_TARGET,
    DTYPE_HELP,
    MODEL_LEN_HELP,
    SEQUENCES_HELP,
    TARGET_HELP,
    WAITING_HELP,
    Dtype,
    PeerTlsSettings,
    ProcessSettings,
    parse_size,
)
from blockdraft_runtime.tpu import COORDINATOR_PORT, TpuHost

DraftPolicy = Literal["adaptive", "fixed"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits of a step, of a sequence and of the queue."""

    max_sequences: int = setting(16, SEQUENCES_HELP, minimum=1, common=True)
    max_step_tokens: int = setting(
        128, "maximum tokens of one forward pass; at least --max-sequences", minimum=1
    )
    # Maximum tokens of one sequence, prompt and completion together; follows from `CacheSettings`.
    max_context_tokens: int = 2048
    max_waiting: int = setting(256, WAITING_HELP, minimum=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.max_step_tokens < self.max_sequences:
            raise ValueError(
                f"--max-step-tokens must be at least --max-sequences, got {self.max_step_tokens} "
                f"and {self.max_sequences}"
            )


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Length of sequences and size of the KV cache; None for what model and memory allow."""

    max_model_len: int | None = setting(None, MODEL_LEN_HELP, minimum=1, common=True)
    kv_cache_bytes: int | None = setting(
        None,
        "size of the KV cache on each device, such as `4GiB`; unset: what --max-sequences of full "
        "length take, at most what is free on an accelerator, and on CPU the smaller of 1 GiB and "
        "an eighth of the memory",
        flag="kv-cache-memory",
        metavar="SIZE",
        parse=parse_size,
        minimum=1,
        common=True,
    )
    num_pages: int | None = setting(
        None, "exact number of pages of the KV cache, in place of --kv-cache-memory", minimum=1
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.kv_cache_bytes is not None and self.num_pages is not None:
            raise ValueError("--kv-cache-memory and --num-pages exclude each other")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the engine loop."""

    scheduler: SchedulerSettings = group(SchedulerSettings)
    page_size: int = setting(16, "tokens per page of the KV cache", minimum=1)
    # Follows from `CacheSettings`; when pages run out, the youngest sequence is preempted.
    num_pages: int = 384
    # These follow from the target, where layers have a state, and else are None: most tokens of
    # a block of which some are rejected, and tokens after which a state changes.
    rollback_tokens: int | None = None
    state_chunk_tokens: int | None = None
    dtype: Dtype = setting("auto", DTYPE_HELP, common=True)
    weights: Literal["stored", "float", "int8"] = setting(
        "stored",
        "`stored` keeps Q4_0, Q4_1 and Q8_0 matrices of a GGUF file on one CPU with kernels; "
        "`float` makes them elements of `--dtype`; `int8` rounds all of the target but the "
        "embedding to a byte an element",
        common=True,
    )
    kv_cache_dtype: Literal["auto", "fp8"] = setting(
        "auto",
        "`fp8` rounds keys and values to a byte each: slightly another model, half the KV cache on "
        "TPU or GPU, and no smaller one on CPU",
    )
    implementation: Literal["auto", "torch"] = setting(
        "auto",
        "`torch` computes the target by its module of transformers, for families that `auto` does "
        "not know; on one device, and needs `pip install 'blockdraft[torch]'`",
    )
    state_snapshots: int = setting(
        8,
        "states saved for prompts that begin like earlier ones, of targets whose layers have "
        "states; each takes as much memory as a running sequence. 0: such prompts are computed in "
        "full",
        minimum=0,
    )
    allow_inexact: bool = setting(
        False,
        "serve although steps are not batch-invariant here, so that completions may depend on "
        "drafts and other requests; unset: such steps are padded, or refused where that makes one "
        "more than 1.3 times as long",
    )
    # Longest step that decodes sequences and computes a part of a prompt, as a multiple of the same
    # step without it. Less shortens inter-token latencies, more shortens times to first token.
    prompt_slowdown: float = 2.0
    draft_policy: DraftPolicy = setting(
        "adaptive",
        "`adaptive` drafts as far as measurements say it pays, zero included; `fixed` always as "
        "far as allowed",
    )
    prompt_lookup: bool = setting(
        True,
        "also draft by prompt lookup: what followed the newest tokens earlier in prompt and "
        "completion; needs no drafter",
    )
    recent_completions: int = setting(
        16384,
        "prompt lookup also searches so many tokens of a tenant's last completions; 0: none",
        minimum=0,
    )
    # Most tokens of the verification of a prompt-lookup draft, the newest token included.
    prompt_lookup_block: int = 16
    draft_groups: Literal[1, 2] = setting(
        1,
        "`2` verifies one half of the sequences while the other is drafted for; meant for a "
        "drafter with a device of its own",
    )
    draft_timeout_seconds: float = setting(
        5.0,
        "how long a response of the drafter may take before the connection counts as lost",
        flag="draft-timeout",
        above=0,
    )
    draft_patience_seconds: float = setting(
        0.02,
        "how long a step waits for a draft at least; longer where drafting usually takes longer "
        "and pays, never longer than --draft-timeout",
        flag="draft-patience",
        minimum=0,
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.implementation == "torch" and self.weights == "int8":
            raise ValueError("--implementation torch and --weights int8 exclude each other")


@dataclass(frozen=True, slots=True)
class SliceSettings:
    """Place of this process in a verifier on a slice of several hosts, one process per host."""

    coordinator: str = required(
        "on a slice of several hosts: where its processes meet, on the host of process 0; unset: "
        "what the environment of a TPU says",
        metavar="HOST:PORT",
    )
    num_processes: int = required("processes of the slice, one per host", minimum=2)
    process_id: int = required("number of this process, from 0; process 0 leads", minimum=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"--coordinator must be host:port, got {self.coordinator!r}")
        if self.process_id >= self.num_processes:
            raise ValueError(
                f"--process-id must be 0 to {self.num_processes - 1}, got {self.process_id}"
            )

    @classmethod
    def of(cls, host: TpuHost | None) -> "SliceSettings | None":
        """Return the process of a TPU host; None without TPU, and if there is only one host."""
        if host is None or host.num_hosts == 1:
            return None
        return cls(f"{host.hostnames[0]}:{COORDINATOR_PORT}", host.num_hosts, host.worker_id)

    @property
    def leads(self) -> bool:
        """Whether this is the process that schedules and answers."""
        return self.process_id == 0

    @property
    def leader_host(self) -> str:
        """Name or address of the host of process 0."""
        return self.coordinator.rpartition(":")[0].strip("[]")


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """All settings of the verifier."""

    target: str = setting(DEFAULT_TARGET, TARGET_HELP, alias="model", common=True)
    drafter_address: str | None = setting(
        "unix:/tmp/blockdraft-drafter.sock",
        "address of the drafter, or `none` to decode plainly",
        flag="drafter",
    )
    cache: CacheSettings = group(CacheSettings)
    engine: EngineSettings = group(EngineSettings)
    adapters: Path | None = setting(
        None,
        "folder of LoRA adapters, one in each subfolder as PEFT writes it; requests name one as "
        "`model:adapter`",
        common=True,
    )
    compilation_cache: Path | None = setting(
        None,
        "folder that keeps compiled executables; unset: `xla` in the folder of BLOCKDRAFT_CACHE",
    )
    self_test: bool = setting(
        False,
        "serve nothing: compile, print whether all steps are batch-invariant, and exit with 0 if "
        "they are",
    )
    # The place of this process on a slice of several hosts; None for a single process.
    slice: SliceSettings | None = optional_group()
    # A second address, beside the one in `process`; None for none.
    peer_address: str | None = setting(
        None,
        "second address to listen at, `host:port`, for servers on other hosts; without "
        "--peer-tls-cert it is plaintext, and every host that reaches it may generate",
        flag="peer-listen",
    )
    # Certificates between the processes; None for plaintext.
    peer_tls: PeerTlsSettings | None = optional_group()
    process: ProcessSettings = group(
        lambda: ProcessSettings("unix:/tmp/blockdraft-verifier.sock"), without=("control",)
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        if self.adapters is not None and self.engine.implementation == "torch":
            raise ValueError("--adapters and --implementation torch exclude each other")
