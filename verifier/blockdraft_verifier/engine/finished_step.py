"""A step whose rows are committed, of which nobody has heard yet."""

from dataclasses import dataclass

from blockdraft_verifier.device.runner import StepResult
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.scheduling.scheduler import Progress
from blockdraft_verifier.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """What a step changed.

    Attributes:
        progress: What it changed for each sequence, by row.
        result: What the target computed.
        times: What drafting took before it.
        ended_at: When the target had computed it, in seconds of the engine's clock.
    """

    progress: list[Progress]
    result: StepResult
    times: DraftTimes
    ended_at: float

    @property
    def ended(self) -> list[Sequence]:
        """Sequences that it brought to their end."""
        sequences = (change.row.sequence for change in self.progress)
        return [sequence for sequence in sequences if sequence.finish_reason is not None]

    def account(self) -> None:
        """Count for each sequence what it consumed."""
        times, verify_seconds = self.times, self.result.seconds
        for change in self.progress:
            usage = change.row.sequence.usage
            if usage.first_step_time is None:
                usage.first_step_time = self.ended_at - verify_seconds
            if not change.new_tokens:
                continue
            if usage.first_token_time is None:
                usage.first_token_time = self.ended_at
            else:
                row = change.row
                usage.count_verification(row.draft_count, change.accepted, row.source)
                usage.verify_seconds += verify_seconds
                usage.draft_seconds += min(times.computed, times.waited)
                usage.transport_seconds += times.transport
            usage.last_token_time = self.ended_at
