"""The interface of a drafter in the verifier's process, on the devices of the target."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.weights.checkpoint import Checkpoint
from blockdraft_runtime.start_progress import Report
from blockdraft_verifier.drafting.link import DraftLink


@runtime_checkable
class HostedDrafter(Protocol):
    """A drafter that is loaded between the target and its KV cache."""

    @property
    def launching(self) -> AbstractContextManager[Any]:
        """Held while a program is launched: devices get those of two threads in one order."""

    def load(self, target: Decoder, report: Report) -> object:
        """Load and compile; return all arrays that it has on the devices, a pytree."""

    def connect(self, target: Checkpoint) -> DraftLink:
        """Return the link to it; `load` comes before."""

    def inspect(self) -> Mapping[str, object]:
        """Return its state, as values that JSON can hold."""

    def stop(self) -> None:
        """End it; nothing is drafted any more."""
