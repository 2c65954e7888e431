"""What learning takes of the chips that draft: their memory, and their time."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp

from blockdraft_aot.errors import AotError
from blockdraft_aot.fit import Memory, check_drafter, memory_of
from blockdraft_aot.modelled import Modelled, compile_on
from blockdraft_aot.pair import Pair
from blockdraft_aot.programs import Program
from blockdraft_aot.topology import Topology
from blockdraft_drafter.config import DraftConfig
from blockdraft_drafter.dflash.config import DFlashConfig


@dataclass(frozen=True, slots=True)
class LearningSurvey:
    """What is known of learning beside drafting.

    Attributes:
        programs: A micro-batch of each length ("learn"), and the update.
        held: What one chip keeps for it, in bytes.
        memory: What one chip holds for drafting and learning together.
        sequences: Of a step.
        micro_batch: Sequences at once.
        length: Tokens of the longest sequences.
        draft_seconds: Modelled time of the longest draft.
    """

    programs: tuple[Modelled, ...]
    held: Mapping[str, int]
    memory: Memory
    sequences: int
    micro_batch: int
    length: int
    draft_seconds: float

    @property
    def step_seconds(self) -> float:
        """The modelled time of a step of the longest sequences."""
        micro_batches = self.sequences // self.micro_batch
        return micro_batches * self._longest("learn") + self._longest("update")

    @property
    def wait_seconds(self) -> float:
        """The longest that a draft waits for learning: a program that has begun is not stopped."""
        return max(self._longest("learn"), self._longest("update"))

    def tokens_per_second(self, share: float) -> float:
        """Return the tokens of recordings learned from in a second, given a share of the time."""
        return share * self.sequences * self.length / self.step_seconds

    def _longest(self, kind: str) -> float:
        return max(each.seconds for each in self.programs if each.program.kind == kind)


def check_learns(drafter: DraftConfig | None) -> None:
    """Check that a drafter can learn while it serves.

    Raises:
        AotError: If not, or training is not installed.
    """
    if not isinstance(drafter, DFlashConfig):
        raise AotError("--learn needs a DFlash drafter: no other learns while it serves")
    if importlib.util.find_spec("optax") is None:
        raise AotError("--learn needs what trains: pip install 'blockdraft[train]'")


def survey_learning(
    topology: Topology,
    pair: Pair,
    drafting: Sequence[Modelled],
    memory: Memory,
    swapped: int,
    dtype: jnp.dtype,
    choose: Callable[[Sequence[Program]], Sequence[Program]],
    on_program: Callable[[], None],
) -> LearningSurvey:
    """Compile the step of learning for the chips of a drafter.

    Args:
        topology: Its chips.
        pair: The models.
        drafting: What drafting compiles there.
        memory: What drafting holds.
        swapped: Bytes of the weights that draft, of which there are two while one replaces the
            other.
        dtype: Of activations.
        choose: Which programs to compile.
        on_program: Called after each.

    Raises:
        DoesNotFitError: If learning does not fit beside drafting.
    """
    # Imported here: without --learn nothing of training is needed.
    from blockdraft_aot.learning.programs import LearningPrograms

    programs = LearningPrograms.on(topology.mesh, pair, dtype)
    compiled = compile_on(choose(list(programs.programs())), topology, on_program)
    held = {**programs.held(), "weights to come": swapped}
    together = memory_of(
        [each.compiled for each in (*drafting, *compiled)],
        usable=memory.usable,
        weights=memory.weights,
        context=memory.context,
    )
    together = replace(together, learning=sum(held.values()))
    check_drafter(together, "learning does not fit beside drafting")
    return LearningSurvey(
        compiled,
        held,
        together,
        programs.settings.batch_size,
        programs.settings.micro_batch_size,
        programs.lengths[-1],
        max(each.seconds for each in drafting if each.program.kind == "draft"),
    )
