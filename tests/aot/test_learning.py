"""What learning holds and takes, by hand; and that its programs can be traced from shapes."""

import jax
import jax.numpy as jnp
from jax.stages import Lowered
from tests.models.tiny import tiny_config

from blockdraft_aot.compiled import Compiled, Counts
from blockdraft_aot.fit import Memory
from blockdraft_aot.learning.programs import LearningPrograms
from blockdraft_aot.learning.survey import LearningSurvey
from blockdraft_aot.modelled import Modelled
from blockdraft_aot.pair import Pair
from blockdraft_aot.programs import Program
from blockdraft_aot.roofline import Roofline
from blockdraft_aot.rounding import Rounding
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_models.decoder.sharding import model_mesh

NONE = Counts(0.0, 0.0, 0.0)


def test_programs_are_those_of_learning() -> None:
    target = tiny_config("qwen3", num_layers=8)
    drafter = DFlashConfig.default_for(target, block_size=4, num_layers=2, num_features=2)
    mesh = model_mesh(jax.devices()[:1])
    programs = LearningPrograms.on(mesh, Pair(target, drafter), jnp.dtype(jnp.bfloat16))
    found = list(programs.programs())
    assert [each.kind for each in found] == ["learn"] * 4 + ["update"]
    assert [each.tokens for each in found] == [2 * 64, 2 * 128, 2 * 256, 2 * 512, 0]
    held = programs.held()
    # Queries, keys, values, output, gate, up, down; two norms, and those of queries and keys.
    layer = 32 * (32 + 16 + 16 + 32 + 3 * 64) + 2 * 32 + 2 * 8
    # Nothing of the projection: what is recorded went through it.
    assert held["learned weights"] == held["gradients"] == 4 * (2 * layer + 32)
    # First and second moments, and two counts of steps.
    assert held["optimizer"] == 2 * held["gradients"] + 2 * 4
    # Tokens and features; where answers begin and end.
    assert held["batch"] == 2 * 512 * (4 + 32 * 2) + 2 * 2 * 4
    lowered = found[0].lower()
    # What is added to takes the place of what was there: gradients, and the sums of metrics.
    assert sum(each.donated for each in jax.tree.leaves(lowered.args_info)) == (
        len(jax.tree.leaves(programs.state.params)) + len(jax.tree.leaves(programs.state.metrics))
    )


def modelled(kind: str, seconds: float) -> Modelled:
    def lower() -> Lowered:
        raise NotImplementedError("what is modelled here was never lowered")

    program = Program(kind, 2, 64, lower, None, 1, 1, NONE, None)
    compiled = Compiled(1.0, NONE, 0, 0, 0, 0, 0, 0, 0, Rounding(()))
    roofline = Roofline(1.0, 1.0, "published")
    return Modelled(program, compiled, Counts(0.0, 0.0, seconds), roofline)


def test_time() -> None:
    programs = (modelled("learn", 0.002), modelled("learn", 0.01), modelled("update", 0.005))
    survey = LearningSurvey(programs, {}, Memory(1, 0, 0, 0, 0, 0), 4, 2, 500, 0.001)
    assert survey.step_seconds == 0.025
    assert survey.wait_seconds == 0.01
    assert survey.tokens_per_second(0.1) == 8000
