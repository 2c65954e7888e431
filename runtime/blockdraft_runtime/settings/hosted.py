"""The settings of verifier and drafter in one process."""

from dataclasses import dataclass

from blockdraft_runtime.configuration.definition import check, group
from blockdraft_runtime.settings.drafter import DrafterSettings
from blockdraft_runtime.settings.verifier import VerifierSettings


@dataclass(frozen=True, slots=True)
class HostedSettings:
    """All settings of the process; one that both models need, such as the target, exists once."""

    verifier: VerifierSettings = group(
        lambda: VerifierSettings(drafter_address=None),
        without=(
            *("drafter", "draft-groups", "self-test"),
            *("coordinator", "num-processes", "process-id"),
        ),
    )
    drafter: DrafterSettings = group(
        DrafterSettings,
        without=("listen", "metrics-port", "find", "peer-tls-cert", "peer-tls-key", "peer-tls-ca"),
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
