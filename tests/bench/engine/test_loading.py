"""How long a proposal is, and the room it has."""

import pytest

from blockdraft_bench.engine.loading import Capacity, engine_settings, whole_proposal
from blockdraft_bench.errors import BenchUsageError


def test_a_whole_proposal_is_a_block_less_its_anchor() -> None:
    assert whole_proposal(None, 8) == 7
    assert whole_proposal(3, 8) == 3
    for wrong in (0, 8):
        with pytest.raises(BenchUsageError, match="1 to 7"):
            whole_proposal(wrong, 8)


def test_every_sequence_has_room_for_its_block_and_its_whole_length() -> None:
    settings = engine_settings(
        Capacity(32, 100, "float32"), block_size=16, draft_policy="fixed", lookup=False
    )
    assert settings.scheduler.max_sequences == 32
    # A block of each, and one token more for a waiting prompt.
    assert settings.scheduler.max_step_tokens >= 32 * 16 + 1
    assert settings.num_pages * settings.page_size >= 32 * 100
    assert settings.draft_policy == "fixed"
