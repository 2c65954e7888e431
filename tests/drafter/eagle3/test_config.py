"""Capture points of EAGLE-3 drafters, in both conventions in which they are published."""

from typing import Any

import pytest
from tests.drafter.builders import TARGET

from blockdraft_drafter.eagle3.config import Eagle3Config, published_layer_ids

NAME = "eagle_aux_hidden_state_layer_ids"


def read(published: dict[str, Any]) -> Eagle3Config:
    return Eagle3Config.from_hf(published, TARGET.config, block_size=2)


def test_published_capture_points() -> None:
    """Layers 2, L / 2 and L - 3 are *entered*: the outputs of the layers before them."""
    assert published_layer_ids(32) == (1, 15, 28)
    assert published_layer_ids(36) == (1, 17, 32)
    assert published_layer_ids(7) == (1, 2, 3)
    with pytest.raises(ValueError, match="6 layers"):
        published_layer_ids(6)


@pytest.mark.parametrize(
    ("named", "outputs"),
    [
        # Those that begin with 1 name outputs, as SpecForge writes them, and are taken as they are.
        ([3, 4, 8], (2, 3, 7)),
        ([1, 3, 7], (1, 3, 7)),
        ([], (1, 3, 4)),
    ],
)
def test_capture_points_may_be_named(named: list[int], outputs: tuple[int, ...]) -> None:
    published = Eagle3Config.default_for(TARGET.config).to_hf()
    nested = {**published, "eagle_config": {NAME: named}}
    flat = {**published, "eagle_config": {}, NAME: named}
    assert read(nested).target_layer_ids == read(flat).target_layer_ids == outputs


@pytest.mark.parametrize("layer_ids", [(0, 3, 5), (1, 3, 5), (2, 3, 7)])
def test_capture_points_round_trip(layer_ids: tuple[int, ...]) -> None:
    config = Eagle3Config.default_for(TARGET.config, target_layer_ids=layer_ids)
    assert read(config.to_hf()).target_layer_ids == layer_ids
