"""What is printed of a survey, by hand."""

import json

import jax
import pytest
from tests.models.tiny import tiny_config

from blockdraft_aot.compiled import Compiled, Counts, Modelled, Program
from blockdraft_aot.model_shapes import Pair
from blockdraft_aot.report import as_json, as_text
from blockdraft_aot.roofline import Roofline
from blockdraft_aot.settings import CompileSettings
from blockdraft_aot.survey import Memory, RoleSurvey
from blockdraft_aot.topology import Topology
from blockdraft_models.decoder.sharding import model_mesh


def never_lowered() -> jax.stages.Lowered:
    raise AssertionError


# Attention takes a second by its bytes, the rest two by XLA's estimate.
ATTENTION = Counts(flops=2e9, bytes=4e9)
PROGRAM = Program("verify", 1, 16, never_lowered, 2, by_hand=ATTENTION, least_bytes=1e9)
COMPILED = Compiled(1.25, Counts(7e9, 5e9, 2.0), 0, 3_000_000, 0, 0, 6, 4, 1, 0)
CHIP = Roofline(peak_flops=3e9, bandwidth=4e9, source="published")
SURVEY = RoleSurvey(
    Topology("v5p:1x1x1", model_mesh(jax.devices()[:1]), CHIP, int(95e9)),
    (Modelled(PROGRAM, COMPILED, COMPILED.counts.plus(ATTENTION), CHIP),),
    Memory(10_000_000_000, 2_500_000_000, 0, temporaries=500_000_000),
    pages=300,
)
SETTINGS = CompileSettings(topology="v5p:1x1x1")


def test_the_table_and_what_fits() -> None:
    text = as_text({"verifier": SURVEY}, SETTINGS.limits)
    head, names, row, _, memory, pages, *_ = text.splitlines()
    assert head.startswith("verifier on v5p:1x1x1 (1 x ")
    assert names.split()[:3] == ["kind", "rows", "tokens"]
    assert row.split() == [
        *("verify", "1", "16", "1.2", "9.0", "9.000", "3000.000"),
        *("compute", "2.0", "3.0", "1"),
    ]
    assert memory.endswith("GB of one chip: weights 2.50, temporaries 0.50; left 7.00 of 10.0")
    assert "fits: --kv-cache-memory 6.5GiB; sequences x tokens: 2 x 4096, 4 x 2048" in pages


def test_json_says_the_same() -> None:
    pair = Pair(tiny_config(), None)
    found = json.loads(as_json({"verifier": SURVEY}, pair, SETTINGS))
    assert (found["target"], found["weights"]) == ("tiny-llama", "float")
    verifier = found["roles"]["verifier"]
    [program] = verifier["programs"]
    assert (program["modelled_seconds"], program["bound"]) == (3.0, "compute")
    assert program["collectives_per_layer"] == pytest.approx(2.0)
    assert (verifier["pages"], verifier["sequences_by_context_tokens"]["4096"]) == (300, 2)
    assert verifier["memory_bytes"]["usable"] == 10_000_000_000
