"""What later kinds of DFlash bring: parts that start as nothing, and matrices of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
from flax import nnx
from tests.drafter.builders import drafter_config, make_method, random_drafter, target_parts

from blockdraft_drafter.compiled.definition import Drafter
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_drafter.method import DraftRow


def test_new_convolutions_and_a_new_selector_change_nothing() -> None:
    drafts = []
    dflash2: dict[str, Any] = {"conv_group_size": 16, "selector_rank": 4, "selector_top_k": 5}
    for added in ({}, dflash2):
        model = DFlash(drafter_config(block_size=8, **added), rngs=nnx.Rngs(0))
        method = make_method(Drafter(DFLASH, model, "0" * 16), target_parts())
        width = method.spec.feature_width
        features = np.random.default_rng(6).standard_normal((9, width)).astype(np.float32)
        drafts += method.step([DraftRow(0, 0, features, 5, 7)])
    assert drafts[0] == drafts[1]


def test_matrices_of_its_own_take_the_place_of_the_targets() -> None:
    config = drafter_config(markov_rank=3)
    mine, theirs = target_parts(5, tied=False), target_parts()
    assert mine.head is not None
    embedding, head = np.asarray(mine.embedding), np.asarray(mine.head)
    drafter = random_drafter(config)
    copies = replace(drafter, embedding=np.asarray(theirs.embedding))
    own = replace(drafter, embedding=embedding, head=head)
    pairs = ((drafter, mine), (own, theirs), (drafter, theirs), (copies, theirs))
    methods = [make_method(*pair) for pair in pairs]
    features = np.random.default_rng(1).standard_normal((20, config.feature_width))
    row = DraftRow(0, 0, features.astype(np.float32), 5, 3)
    drafts = [method.step([row]) for method in methods]
    assert drafts[0] == drafts[1] != drafts[2] == drafts[3]
    # A copy is not held a second time.
    assert methods[3]._weights.target.embedding is theirs.embedding
