"""A sequence's part of a step: what runs, what the target made of it, and what that changed."""

from dataclasses import dataclass

from blockdraft_models.diffusion import NoiseDiffusion
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.scheduling.canvas import CanvasChoices, step_sampling
from blockdraft_verifier.scheduling.sequence import DraftSource, TokenSequence
from blockdraft_verifier.scheduling.states import StateCopy


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of a step."""

    sequence: TokenSequence
    start: int  # position of the first token; equals the sequence's committed length
    token_ids: tuple[int, ...]  # known tokens, then `draft_count` drafted ones
    draft_count: int
    source: DraftSource = DraftSource.DRAFTER
    # Whether the drafter was asked for more of them than it drafted, or the grammar cut its draft.
    ended_early: bool = False
    forced: tuple[int, ...] = ()  # places of those that the grammar left no choice of
    discarded: int = 0  # tokens of the draft that the grammar cut
    scored: bool = False  # whether log probabilities of the prompt are wanted of it
    state_copies: tuple[StateCopy, ...] = ()  # of any sequences, made before the step
    canvas_count: int = 0  # number of its last tokens that are a canvas

    @property
    def known_count(self) -> int:
        """Number of `token_ids` that are not drafted."""
        return len(self.token_ids) - self.draft_count

    @property
    def drafted(self) -> tuple[int, ...]:
        """The drafted tokens."""
        return self.token_ids[self.known_count :]

    @property
    def masks_tokens(self) -> bool:
        """Whether some tokens may not be chosen."""
        return self.sequence.grammar is not None or self.sequence.request.masks is not None

    @property
    def sources(self) -> list[DraftSource]:
        """The source of each drafted token."""
        sources = [self.source] * self.draft_count
        for place in self.forced:
            sources[place] = DraftSource.GRAMMAR
        return sources

    @property
    def choice_count(self) -> int:
        """Number of its last tokens after which the target's logits are wanted."""
        if self.canvas_count:
            return self.canvas_count
        return len(self.token_ids) if self.scored else self.draft_count + 1

    @property
    def sampling(self) -> Sampling:
        """The sampling options of its choices."""
        options, canvas = self.sequence.request.sampling, self.sequence.canvas
        return options if canvas is None else step_sampling(options, canvas)

    @property
    def scored_tokens(self) -> tuple[int, ...]:
        """Tokens of the prompt after each of the row's, whose log probabilities are wanted."""
        if not self.scored:
            return ()
        following = self.start + 1
        return tuple(self.sequence.tokens[following : following + len(self.token_ids)])

    @property
    def chooses(self) -> bool:
        """Whether the row reaches the newest token, so that the target's choice continues it."""
        if isinstance(self.sequence.diffusion, NoiseDiffusion):
            return False
        return self.start + self.known_count == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class RowResult:
    """The target's verdict on a row: accepted drafted tokens, and its own next token."""

    accepted: int
    next_token: int
    after_rejected: tuple[int, ...] = ()  # its choice after each drafted token not accepted
    canvas: CanvasChoices | None = None


@dataclass(frozen=True, slots=True)
class SequenceProgress:
    """Changes that a step made to one sequence."""

    row: Row
    accepted: int  # drafted tokens accepted by the target and part of the completion
    new_tokens: tuple[int, ...]  # tokens gained; empty for a chunk in the middle of a prompt
    committed_count: int  # positions from `row.start` on that became final
    gave_up: bool = False  # whether the parser of its grammar did
