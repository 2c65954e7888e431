"""Compiles what a service would compile on its chips, and judges whether it fits."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from blockdraft_aot.classes import Padding, RoundingClass, classes_of
from blockdraft_aot.compiled import bytes_on_one_device
from blockdraft_aot.fit import Memory, check_drafter, memory_of, pages_that_fit
from blockdraft_aot.modelled import Modelled, compile_on
from blockdraft_aot.pair import Pair
from blockdraft_aot.programs import (
    Program,
    draft_programs,
    target_programs,
    unpadded_programs,
)
from blockdraft_aot.settings import ServingLimits, SurveySettings
from blockdraft_aot.target_programs import TargetPrograms
from blockdraft_aot.topology import Topology
from blockdraft_drafter.catalogue import method_of
from blockdraft_drafter.compiled.programs import abstract_programs
from blockdraft_drafter.compiled.steps import Room
from blockdraft_models.decoder.sharding import Placement

DTYPE: DTypeLike = jnp.bfloat16
"""What weights and caches are on a TPU."""

# The cache that programs are compiled with; how large it may be is known only afterwards.
_FIRST_GUESS = 0.5


@dataclass(frozen=True, slots=True)
class RoleSurvey:
    """What is known of one process.

    Attributes:
        topology: Its chips.
        programs: Everything it compiles.
        memory: What one of its chips holds.
        pages: Pages of K/V that fit; None for a drafter.
        classes: Which of a verifier's programs round alike; empty for a drafter.
        paddings: What the padding of a verifier's plain steps costs, per number of rows.
    """

    topology: Topology
    programs: tuple[Modelled, ...]
    memory: Memory
    pages: int | None
    classes: tuple[RoundingClass, ...] = ()
    paddings: tuple[Padding, ...] = ()


def survey_verifier(
    topology: Topology,
    pair: Pair,
    limits: ServingLimits,
    settings: SurveySettings,
    on_program: Callable[[], None] = lambda: None,
) -> RoleSurvey:
    """Compile the verifier's programs.

    Args:
        topology: Its chips.
        pair: The models.
        limits: Of the service.
        settings: What to compile.
        on_program: Called after each.

    Raises:
        DoesNotFitError: If it does not fit.
    """
    usable = int(topology.memory_bytes * settings.memory_share)
    needed = math.ceil(limits.max_context_tokens / limits.page_size)
    programs = TargetPrograms.on(topology.mesh, pair, limits, needed, DTYPE)
    weights, page_bytes = programs.weight_bytes(), programs.layout.page_bytes
    empty = Memory(usable, weights, 0, 0, 0, 0)
    guess = int(_FIRST_GUESS * pages_that_fit(empty, page_bytes, needed))
    layout = replace(programs.layout, num_pages=max(needed, guess))
    programs = replace(programs, layout=layout)
    chosen = _chosen(target_programs(programs, settings.context_tokens), settings)
    compiled = compile_on(chosen, topology, on_program)
    memory = memory_of([each.compiled for each in compiled], usable=usable, weights=weights)
    pages = pages_that_fit(memory, page_bytes, needed)
    padded = {(each.program.rows, each.program.tokens): each for each in compiled}
    least = programs.least_tokens
    plain = unpadded_programs(programs, settings.context_tokens)
    # These are compiled for comparison only and take no memory of a service.
    comparable = [each for each in plain if (each.rows, least) in padded]
    paddings = tuple(
        Padding(padded[each.program.rows, least], each)
        for each in compile_on(comparable, topology, on_program)
    )
    return RoleSurvey(topology, compiled, memory, pages, classes_of(compiled), paddings)


def survey_drafter(
    topology: Topology,
    pair: Pair,
    limits: ServingLimits,
    settings: SurveySettings,
    on_program: Callable[[], None] = lambda: None,
) -> RoleSurvey:
    """Compile the drafter's programs; see `survey_verifier`."""
    assert pair.drafter is not None
    room = Room(
        limits.max_sequences,
        limits.max_context_tokens,
        limits.max_step_tokens,
        np.dtype(ml_dtypes.bfloat16),
        projected=True,
    )
    placement = Placement(topology.mesh)
    drafter = pair.drafter
    programs = abstract_programs(
        method_of(drafter), drafter, pair.target, room, dtype=DTYPE, placement=placement
    )
    chosen = _chosen(draft_programs(programs, drafter, settings.context_tokens), settings)
    compiled = compile_on(chosen, topology, on_program)
    memory = memory_of(
        [each.compiled for each in compiled],
        usable=int(topology.memory_bytes * settings.memory_share),
        weights=bytes_on_one_device(programs.weights),
        context=bytes_on_one_device(programs.steps.context()),
    )
    check_drafter(memory)
    return RoleSurvey(topology, compiled, memory, None)


def _chosen(programs: Iterable[Program], settings: SurveySettings) -> list[Program]:
    """Return all programs, or the smallest and the largest of each kind."""
    if not settings.ends_only:
        return list(programs)
    by_kind: dict[str, list[Program]] = {}
    for program in programs:
        by_kind.setdefault(program.kind, []).append(program)
    return [end for each in by_kind.values() for end in (each[0], *each[1:][-1:])]
