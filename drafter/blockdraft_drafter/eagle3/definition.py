"""EAGLE-3 as a draft method."""

from blockdraft_drafter.compiled.definition import MethodDefinition
from blockdraft_drafter.eagle3 import published
from blockdraft_drafter.eagle3.config import Eagle3Config
from blockdraft_drafter.eagle3.model import Eagle3
from blockdraft_drafter.eagle3.steps import Eagle3Steps

EAGLE3: MethodDefinition[Eagle3Config, Eagle3] = MethodDefinition(
    name="eagle3",
    title="EAGLE-3",
    config_type=Eagle3Config,
    recognizes=published.is_eagle3,
    config_from_hf=lambda config, target, block_size: published.config_from_hf(
        config, num_target_layers=target.num_layers, block_size=block_size
    ),
    config_to_hf=published.config_to_hf,
    default_config=lambda target, block_size, num_layers: Eagle3Config.default_for(
        target, block_size=block_size
    ),
    draft_tensors=published.draft_tensors,
    ignores=published.ignores,
    module=Eagle3,
    steps=Eagle3Steps,
    reads_tokens=True,
    own_matrices=True,
)
