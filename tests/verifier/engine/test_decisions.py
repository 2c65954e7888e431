"""What the policy decides, in virtual time, over services as they were measured.

Nothing is computed: texts are made up, every step and draft takes what it was measured to take, and
scheduler, prompt lookup and policy are the real ones. The decisions of each service are on record,
as a hash, with the tokens per second they come to: to write the same policy in other words changes
neither. A commit that changes a decision on purpose records the new hashes and compares the speeds,
of which none may be 2 % less: `python -m tests.verifier.engine.test_decisions`.
"""

import hashlib
import random
from dataclasses import dataclass
from itertools import count

import pytest

from blockdraft_runtime.settings.verifier import DraftPolicy, EngineSettings, SchedulerSettings
from blockdraft_verifier.device.buckets import Bucket, bucket_for
from blockdraft_verifier.drafting.sync import DraftTimes
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.costs import DraftCosts
from blockdraft_verifier.engine.policy import DraftLengths
from blockdraft_verifier.scheduling.pages import PageAllocator
from blockdraft_verifier.scheduling.scheduler import Row, RowResult, Scheduler
from blockdraft_verifier.scheduling.sequence import Draft, GenerationRequest, TokenSequence

# Seconds of steps by tokens: SmolLM2-135M in bfloat16 on two cores of a Zen 4, and a chip.
CPU = {1: 0.042, 2: 0.0425, 4: 0.043, 8: 0.05, 16: 0.052, 32: 0.068, 64: 0.104}
CHIP = {16: 0.008, 64: 0.0085, 256: 0.011, 1024: 0.03}


@dataclass(frozen=True)
class Scenario:
    """A closed loop of callers."""

    steps: dict[int, float]
    callers: int
    # How likely a drafted token is right, if the tokens before it are, for every other caller; for
    # the callers between, it is right half as often.
    right: float
    repeats: float = 0.0  # how likely a text goes on as it did before, at each token
    # How likely a draft goes on after each token, where a pass makes each; else None.
    goes_on: float | None = None
    slow: bool = False  # whether the machine is now and then slower than it was
    policy: DraftPolicy = "adaptive"


SCENARIOS = {
    "one, good drafter": (Scenario(CPU, 1, 0.85), "25ef8dc3", 43.01),
    "one, bad drafter": (Scenario(CPU, 1, 0.15), "58e13d69", 22.91),
    "one, no drafter, repeats": (Scenario(CPU, 1, 0.0, repeats=0.9), "58aba8b3", 62.47),
    "one, good drafter, repeats": (Scenario(CPU, 1, 0.8, repeats=0.9), "01ef3059", 72.54),
    "one, token by token, T=1": (Scenario(CPU, 1, 0.6, goes_on=0.7), "18051c71", 33.34),
    "one, slow at times": (Scenario(CPU, 1, 0.7, repeats=0.7, slow=True), "29d463d1", 45.43),
    "eight, good drafter": (Scenario(CPU, 8, 0.85), "b5400e1d", 158.83),
    "eight, bad drafter": (Scenario(CPU, 8, 0.2), "1a39db4c", 131.74),
    "eight, repeats, T=1": (Scenario(CPU, 8, 0.6, repeats=0.8, goes_on=0.7), "10caa0e0", 226.08),
    "sixteen, good drafter": (Scenario(CPU, 16, 0.85), "25967fc1", 212.62),
    "sixteen, bad drafter": (Scenario(CPU, 16, 0.2), "afdb91b0", 212.89),
    "sixteen, repeats": (Scenario(CPU, 16, 0.7, repeats=0.8, slow=True), "869754ce", 227.84),
    "sixteen on a chip": (Scenario(CHIP, 16, 0.7, repeats=0.5), "6b54b441", 4712.8),
    "fixed": (Scenario(CPU, 4, 0.6, repeats=0.5, policy="fixed"), "d966a1d3", 167.19),
}


class Service:
    """Completions of 40 tokens of prompts of 20 to 60, one after another for each caller."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        limits = SchedulerSettings(scenario.callers, max(scenario.steps), 256)
        settings = EngineSettings(
            num_pages=1024, scheduler=limits, draft_policy=scenario.policy, prompt_lookup_block=8
        )
        self.scheduler = Scheduler(limits, PageAllocator(1024, settings.page_size))
        self.buckets = tuple(
            Bucket(scenario.callers, tokens, tokens) for tokens in sorted(scenario.steps)
        )
        self.lengths = DraftLengths(settings)
        self.block = 8 if scenario.right else 1
        self.lengths.use_blocks(self.block)
        costs = CostModel({each: scenario.steps[each.tokens] for each in self.buckets})
        self.drafts = (0.006, 0.0065, 0.008, 0.013, 0.022)
        if scenario.right:
            shortest = () if scenario.goes_on is None else tuple(each / 4 for each in self.drafts)
            costs.drafts = DraftCosts(self.block, self.drafts, shortest)
        self.lengths.costs = costs
        self.random = random.Random(0)
        self.numbers = count(1)
        self.texts: dict[TokenSequence, list[int]] = {}
        self.decided = hashlib.sha256()
        self.now, self.tokens, self.completions = 0.0, 0, 0

    def run(self, completions: int) -> tuple[str, float]:
        """Return the hash of all decisions, and the tokens per second."""
        for _ in range(self.scenario.callers):
            self.ask()
        while self.completions < completions:
            self.step()
        return self.decided.hexdigest()[:8], self.tokens / self.now

    def ask(self) -> None:
        text = [self.random.randrange(50)]
        prompt, output = self.random.randint(20, 60), 40
        source = 0
        while len(text) < prompt + output + 1:
            if self.random.random() < self.scenario.repeats:
                source += 1
            else:
                source = self.random.randrange(len(text))
            fresh = not self.scenario.repeats or source >= len(text)
            text.append(self.random.randrange(1000) if fresh else text[source])
        number = next(self.numbers)
        request = GenerationRequest(str(number), tuple(text[:prompt]), max_output_tokens=output)
        sequence = TokenSequence(number, request, self.now)
        self.texts[sequence] = text
        self.lengths.add(sequence)
        self.scheduler.add(sequence)

    def step(self) -> None:
        rows = self.scheduler.plan(None, self.lengths.prompt_room)
        tokens = sum(len(row.token_ids) for row in rows)
        seconds = self.scenario.steps[bucket_for(self.buckets, len(rows), tokens).tokens]
        if self.scenario.slow and int(self.now) % 4 == 3:
            seconds *= 1.8
        self.now += seconds
        self.lengths.observe_step(rows, seconds)
        progress = [self.scheduler.commit(row, self.result(row)) for row in rows]
        self.lengths.observe_acceptance(progress)
        for change in progress:
            sequence = change.row.sequence
            self.tokens += len(change.new_tokens)
            if sequence.finish_reason is not None:
                self.scheduler.remove(sequence)
                self.lengths.forget(sequence)
                self.completions += 1
                self.ask()
        running = self.scheduler.running
        wanted = self.lengths.decide(running, self.block, self.scheduler.prompt_tokens)
        found = [(s.sequence_id, s.draft.token_ids) for s in running if s.draft is not None]
        asked = [(sequence, length) for sequence, length in wanted if length]
        decision = [(sequence.sequence_id, length) for sequence, length in wanted], found
        self.decided.update(repr((decision, round(self.lengths.wait_seconds(wanted), 9))).encode())
        if asked:
            self.draft(asked)

    def draft(self, asked: list[tuple[TokenSequence, int]]) -> None:
        longest = 0
        for sequence, length in asked:
            text, start = self.texts[sequence], len(sequence.tokens)
            right = self.scenario.right / (1 if sequence.sequence_id % 2 else 2)
            drafted: list[int] = []
            while len(drafted) < length:
                true = text[start + len(drafted)]
                drafted.append(true if self.random.random() < right else -1)
                goes_on = self.scenario.goes_on
                if goes_on is not None and self.random.random() > goes_on:
                    break
            sequence.draft = Draft(tuple(drafted), ended_early=len(drafted) < length)
            longest = max(longest, len(drafted))
        computed = self.drafts[min((len(asked) - 1).bit_length(), 4)]
        if self.scenario.goes_on is not None:
            computed *= (1 + longest) / 8
        times = DraftTimes(computed + 0.0005, computed, 1, len(asked), longest)
        self.now += times.waited
        self.lengths.observe_drafting(times)

    def result(self, row: Row) -> RowResult:
        text, start = self.texts[row.sequence], row.start + row.known_count
        accepted = 0
        for token in row.token_ids[row.known_count :]:
            if token != text[start + accepted]:
                break
            accepted += 1
        return RowResult(accepted, text[start + accepted])


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_decisions_are_those_on_record(name: str) -> None:
    scenario, decided, speed = SCENARIOS[name]
    found, rate = Service(scenario).run(6 * scenario.callers)
    assert (found, round(rate, 2)) == (decided, speed)


if __name__ == "__main__":
    for title, (service, *_) in SCENARIOS.items():
        print(title, Service(service).run(6 * service.callers))
