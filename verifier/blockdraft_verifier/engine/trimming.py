"""Which of the proposed tokens are verified: those that make the step worth most.

What is proposed for all sequences shares one step. So their tokens are taken in the order of how
likely they are to be right, as many as fill the step that is worth most. The cost model's draft
length says what to ask of the drafter before it has drafted; this looks at what it has drafted.
"""

from collections import Counter
from collections.abc import Sequence

from blockdraft_verifier.engine.cost_model import CostModel, WaitingPrompts


def likeliest(
    costs: CostModel,
    rows: int,
    survivals: Sequence[Sequence[float]],
    *,
    unsaid: tuple[int, float],
    prompts: WaitingPrompts,
) -> list[int]:
    """Return how many tokens of each proposal to verify.

    Args:
        costs: What steps cost.
        rows: Sequences that are decoding, with a proposal or without.
        survivals: How likely the first 1, 2, ... tokens of each proposal are all right.
        unsaid: Tokens of proposals that do not say how likely they are, which are verified in any
            case, and how many are expected to be accepted of these.
        prompts: What waits for room in the step.
    """
    # A later token of a sequence is never likelier than one before it.
    falling = sorted(
        ((alive, index) for index, survival in enumerate(survivals) for alive in survival),
        reverse=True,
    )
    tokens, gain = unsaid
    chances = [alive for alive, _ in falling]
    filled = costs.fill(rows, rows + tokens, rows + gain, 0.0, chances, prompts)
    kept = Counter(index for _, index in falling[: filled.count])
    return [kept[index] for index in range(len(survivals))]
