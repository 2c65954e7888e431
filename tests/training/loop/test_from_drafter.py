"""What a run keeps of the drafter it starts from."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drafter.builders import drafter_config, random_drafter

from blockdraft_training.methods.initialize import from_drafter

OLD, NEW = np.array([1, 4, 9, 20]), np.array([0, 4, 20, 33, 40])


def test_a_markov_head_moves_to_another_vocabulary() -> None:
    config = drafter_config(markov_rank=3, draft_vocab_size=len(OLD))
    earlier = replace(random_drafter(config), draft_ids=OLD)
    model = from_drafter(replace(config, draft_vocab_size=len(NEW)), earlier, NEW, seed=1)
    old, new = earlier.model.markov_head, model.markov_head
    assert old is not None
    assert new is not None
    np.testing.assert_array_equal(new.markov_w1[...], old.markov_w1[...])
    moved = np.asarray(new.markov_w2[...])
    np.testing.assert_array_equal(moved[[1, 2]], np.asarray(old.markov_w2[...])[[1, 3]])
    assert not moved[[0, 3, 4]].any()
    np.testing.assert_array_equal(model.fc.weight[...], earlier.model.fc.weight[...])


@pytest.mark.parametrize(("had", "wanted"), [(0, 3), (2, 3), (3, 0)])
def test_a_head_of_another_rank_starts_anew(had: int, wanted: int) -> None:
    earlier = random_drafter(drafter_config(markov_rank=had))
    config = drafter_config(markov_rank=wanted)
    model = from_drafter(config, earlier, None, seed=1)
    if wanted:
        assert model.markov_head is not None
        assert not np.asarray(model.markov_head.markov_w2[...]).any()
    else:
        assert model.markov_head is None
    np.testing.assert_array_equal(model.norm.scale[...], earlier.model.norm.scale[...])
