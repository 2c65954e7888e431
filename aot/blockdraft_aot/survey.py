"""Compiles what a process would compile on its chips, and judges whether it fits."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from blockdraft_aot.compiled import Compiled, Modelled, Program, bytes_on_one_device, compile_on
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.programs import TargetPrograms, draft_programs
from blockdraft_aot.settings import CompileSettings, DoesNotFitError
from blockdraft_aot.topology import Topology
from blockdraft_drafter.compiled.programs import Capacity
from blockdraft_drafter.sources import method_of
from blockdraft_models.decoder.sharding import Placement

DTYPE: DTypeLike = jnp.bfloat16
"""Element type of weights and caches on a TPU."""

# Programs are compiled with this share of the pages that fit without them, as their own memory is
# known only afterwards.
_FIRST_GUESS = 0.5
_LENGTHS = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one chip of a role, in bytes."""

    usable: int  # what may be used at all
    weights: int  # the model's
    kv_cache: int  # the drafter's; 0 for a verifier, whose pages take the rest
    states: int = 0  # of sequences, in layers that recur
    drafter: int = 0  # all that a drafter takes which the verifier hosts
    temporaries: int = 0  # of the program that needs most while it runs
    results: int = 0  # of the program that returns most
    code: int = 0  # of all programs, loaded at once

    @property
    def consumers(self) -> Mapping[str, int]:
        """Bytes that are taken, by consumer."""
        return {name: size for name, size in asdict(self).items() if name != "usable"}

    @property
    def left(self) -> int:
        """Bytes that are left; negative if the role does not fit."""
        return self.usable - sum(self.consumers.values())

    def with_programs(self, compiled: Sequence[Compiled]) -> "Memory":
        """Return the memory with the programs of the role added."""
        return replace(
            self,
            temporaries=max(program.temporary_bytes for program in compiled),
            results=max(program.result_bytes for program in compiled),
            code=sum(program.code_bytes for program in compiled),
        )


@dataclass(frozen=True, slots=True)
class RoleSurvey:
    """Survey of one process: its programs, and the memory of one of its chips.

    `pages` is how many pages of K/V fit; None for a drafter. `shared_bytes` counts the weights that
    a drafter shares with the target.
    """

    topology: Topology
    programs: tuple[Modelled, ...]
    memory: Memory
    pages: int | None
    shared_bytes: int = 0


def survey_verifier(
    topology: Topology,
    pair: Pair,
    settings: CompileSettings,
    on_program: Callable[[], None],
    hosted: RoleSurvey | None = None,
) -> RoleSurvey:
    """Compile the verifier's programs, on chips that may hold a hosted drafter too.

    `on_program` is called after each.
    """
    limits, survey = settings.limits, settings.survey
    needed = math.ceil(limits.max_context_tokens / limits.page_size)
    programs = TargetPrograms.on(topology.mesh, pair, limits, needed, DTYPE)
    page_bytes = programs.layout.page_bytes
    beside = 0 if hosted is None else sum(hosted.memory.consumers.values()) - hosted.shared_bytes
    states = programs.layout.states.bytes if programs.layout.states else 0
    memory = Memory(_usable(topology, settings), programs.weight_bytes(), 0, states, beside)
    guess = int(_FIRST_GUESS * pages_that_fit(memory, page_bytes, needed))
    layout = replace(programs.layout, num_pages=max(needed, guess))
    programs = replace(programs, layout=layout)
    steps = (programs.program(bucket, survey.context_tokens) for bucket in programs.buckets)
    compiled = compile_on(_chosen(steps, ends_only=survey.ends_only), topology, on_program)
    memory = memory.with_programs([program.compiled for program in compiled])
    return RoleSurvey(topology, compiled, memory, pages_that_fit(memory, page_bytes, needed))


def survey_drafter(
    topology: Topology, pair: Pair, settings: CompileSettings, on_program: Callable[[], None]
) -> RoleSurvey:
    """Compile the drafter's programs; see `survey_verifier`."""
    drafter, limits, survey = pair.drafter, settings.limits, settings.survey
    assert drafter is not None
    capacity = Capacity(
        limits.max_sequences,
        limits.max_context_tokens,
        limits.max_step_tokens,
        np.dtype(ml_dtypes.bfloat16),
        projected=True,
    )
    programs = method_of(drafter).abstract_programs(
        drafter,
        pair.target,
        capacity,
        dtype=DTYPE,
        placement=Placement(topology.mesh),
    )
    steps = draft_programs(programs, drafter, survey.context_tokens)
    compiled = compile_on(_chosen(steps, ends_only=survey.ends_only), topology, on_program)
    memory = Memory(
        _usable(topology, settings),
        weights=bytes_on_one_device(programs.weights),
        kv_cache=bytes_on_one_device(programs.cache()),
    ).with_programs([program.compiled for program in compiled])
    check_drafter(memory)
    matrices = programs.weights.target
    # A head over a draft vocabulary is the drafter's own.
    own_head = drafter.draft_vocab_size is not None
    shared = bytes_on_one_device(matrices._replace(head=None) if own_head else matrices)
    return RoleSurvey(topology, compiled, memory, None, shared)


def _usable(topology: Topology, settings: CompileSettings) -> int:
    return int(topology.memory_bytes * settings.survey.memory_share)


def _chosen(programs: Iterable[Program], *, ends_only: bool) -> list[Program]:
    """Return all programs, or the smallest and the largest of each kind."""
    if not ends_only:
        return list(programs)
    by_kind: dict[str, list[Program]] = {}
    for program in programs:
        by_kind.setdefault(program.kind, []).append(program)
    return [end for group in by_kind.values() for end in (group[0], *group[1:][-1:])]


def pages_that_fit(memory: Memory, page_bytes: int, needed: int) -> int:
    """Return the pages of K/V, over all layers, that fit into the rest of a verifier's chip.

    Raises DoesNotFitError, which names the largest consumer, if they are fewer than `needed`, the
    pages of one sequence of the greatest length.
    """
    pages = memory.left // page_bytes
    if pages < needed:
        raise DoesNotFitError(
            f"the verifier does not fit: {_largest(memory)} of {_gb(memory.usable)} usable, which "
            f"leaves room for {max(0, pages)} of the {needed} pages that one sequence needs"
        )
    return pages


def check_drafter(memory: Memory) -> None:
    """Check that a drafter fits; raises DoesNotFitError if not; names the largest consumer."""
    if memory.left < 0:
        raise DoesNotFitError(
            f"the drafter does not fit: it lacks {_gb(-memory.left)} of {_gb(memory.usable)} "
            f"usable; {_largest(memory)}"
        )


def batch_by_context(pages: int, page_size: int, most_tokens: int) -> dict[int, int]:
    """Return the number of sequences that fit by their length, halved down from the greatest."""
    lengths: list[int] = []
    length = most_tokens
    while length >= page_size and len(lengths) < _LENGTHS:
        lengths.append(length)
        length //= 2
    return {length: pages // -(-length // page_size) for length in lengths}


def _largest(memory: Memory) -> str:
    name, size = max(memory.consumers.items(), key=lambda item: item[1])
    return f"{name} take {_gb(size)}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
