"""DFlash as a draft method."""

from blockdraft_drafter.compiled.definition import MethodDefinition
from blockdraft_drafter.dflash import published
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFlash
from blockdraft_drafter.dflash.steps import DFlashSteps

DFLASH: MethodDefinition[DFlashConfig, DFlash] = MethodDefinition(
    name="dflash",
    title="DFlash",
    config_type=DFlashConfig,
    # Many checkpoints name no architecture: those that are of no other method are DFlash.
    recognizes=lambda config: True,
    config_from_hf=lambda config, target, block_size: published.config_from_hf(config),
    config_to_hf=published.config_to_hf,
    default_config=lambda target, block_size, num_layers: DFlashConfig.default_for(
        target, block_size=block_size, num_layers=num_layers
    ),
    draft_tensors=published.draft_tensors,
    ignores=published.ignores,
    module=DFlash,
    steps=DFlashSteps,
    can_learn=True,
)
