"""Derived figures, by hand."""

import pytest
from tests.fakes.inference import USAGE

from blockdraft_client import StepSeconds, Usage


def test_derived_figures() -> None:
    usage = Usage.from_proto(USAGE)
    assert usage.acceptance_length == pytest.approx(1 + 3 / 2)
    assert usage.acceptance_rate == pytest.approx(3 / 8)
    assert usage.acceptance_per_position == pytest.approx((1.0, 0.5, 0.0, 0.0))
    assert usage.time_to_first_token_seconds == pytest.approx(0.75)
    # Six tokens, the first of which started the clock.
    assert usage.tokens_per_second == pytest.approx(5 / 2.5)
    assert Usage(output_tokens=2, decode_seconds=0.5).tokens_per_second == 2.0
    assert usage.step_seconds == StepSeconds(1.0, 0.75, 0.5, 0.25)
    assert usage.step_seconds.total == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("usage", "length", "rate", "positions"),
    [
        (Usage(output_tokens=1, decode_seconds=0.5), None, None, ()),
        # Plain decoding gains one token a step.
        (Usage(output_tokens=9, verification_steps=8), 1.0, None, ()),
        # Positions that were never drafted are left out.
        (
            Usage(drafted_per_position=(4, 2, 2, 0), accepted_per_position=(2, 1)),
            None,
            None,
            (0.5, 0.5, 0.0),
        ),
    ],
)
def test_what_did_not_happen_is_left_out(
    usage: Usage, length: float | None, rate: float | None, positions: tuple[float, ...]
) -> None:
    assert (usage.acceptance_length, usage.acceptance_rate) == (length, rate)
    assert usage.acceptance_per_position == positions
    assert usage.tokens_per_second is None
