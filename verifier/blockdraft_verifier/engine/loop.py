"""The engine loop: collect drafts, plan, verify, commit, ask for the next drafts.

One thread runs it and owns everything it touches; other threads talk to it through `submit` and
`cancel`, and it calls the listeners that were submitted.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from blockdraft_runtime.settings.verifier import EngineSettings
from blockdraft_verifier.device.cache import FeatureStore
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.device.step_runner import StepResult, StepRunner
from blockdraft_verifier.drafting.handshake import DrafterDescription
from blockdraft_verifier.drafting.link import DraftLink
from blockdraft_verifier.drafting.sync import DraftSync, DraftTimes
from blockdraft_verifier.engine.ahead import PlannedStep, StepsAhead
from blockdraft_verifier.engine.cost_model import CostModel
from blockdraft_verifier.engine.costs import DraftCosts
from blockdraft_verifier.engine.guards import RecompilationGuard, StepWatch
from blockdraft_verifier.engine.inbox import Inbox
from blockdraft_verifier.engine.listeners import FinishedStep, Listener, Listeners, StepEnd
from blockdraft_verifier.engine.metrics import Load, VerifierMetrics
from blockdraft_verifier.engine.policy import DraftLengths
from blockdraft_verifier.engine.preparation import Guest, Preparation, ReadySteps, SelfTest, spawn
from blockdraft_verifier.exactness import Exactness
from blockdraft_verifier.scheduling.grammar import Grammar
from blockdraft_verifier.scheduling.pages import PageAllocator
from blockdraft_verifier.scheduling.row import Row, SequenceProgress
from blockdraft_verifier.scheduling.scheduler import Scheduler
from blockdraft_verifier.scheduling.sequence import FinishReason, GenerationRequest, TokenSequence
from blockdraft_verifier.scheduling.states import StateSlots

logger = logging.getLogger(__name__)

# If the newest is a replay, so many times as many sequences may run and wait: all sequences of
# another verifier of the same size can go on here after it has died.
REPLAY_ROOM = 2


class QueueFullError(RuntimeError):
    """Too many sequences run and wait."""


class EngineStoppedError(RuntimeError):
    """The engine has stopped or failed and takes no more sequences."""


class Engine:
    """Decodes sequences with the target, drafting when a drafter is attached and it pays."""

    def __init__(
        self,
        runner: StepRunner,
        settings: EngineSettings,
        link: DraftLink | None,
        vocab_size: int,
        metrics: VerifierMetrics,
        *,
        guard: RecompilationGuard | None = None,
        self_test: SelfTest | None = None,
        guest: Guest | None = None,
        spawn: Callable[[Callable[[], None]], None] = spawn,
        on_failure: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Drive `runner`; `warm_up` must follow before `step` or `start`.

        A `guest` compiles for a late drafter, on a thread of `spawn`; without one serving waits.
        """
        self._runner = runner
        self.settings = settings
        self.metrics = metrics
        self.exactness: Exactness | None = None
        self._on_failure, self._clock = on_failure, clock
        self._pages = PageAllocator(settings.num_pages, settings.page_size)
        slots = StateSlots.of(settings)
        self.scheduler = Scheduler(settings.scheduler, self._pages, slots, runner.diffusion)
        of_drafts = vocab_size, settings.draft_timeout_seconds, metrics.count_repair, clock
        self.drafts = None if link is None else DraftSync(link, *of_drafts)
        self.watch = StepWatch()
        self._features: FeatureStore | None = None
        self.lengths = DraftLengths(settings)
        self._listeners = Listeners()
        self._pending_step: FinishedStep | None = None
        self._ahead = StepsAhead(
            self.scheduler, lambda s: self.lengths.can_draft(s, attached=self.drafter is not None)
        )
        self._inbox = Inbox()
        of_guests = guest, spawn, self._pages, self._inbox.post
        self._preparation = Preparation(self_test, guard, *of_guests)
        self._ids = itertools.count(1)
        # Sequences submitted and not ended; any thread may ask how many there are.
        self._sequences: set[TokenSequence] = set()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def drafter(self) -> DrafterDescription | None:
        """The attached drafter, or None."""
        return self.drafts.description if self.drafts is not None else None

    def warm_up(self, progress: Callable[[int, int], None] = lambda count, total: None) -> None:
        """Compile every step for the drafter that is there now, or for none."""
        drafter = self.drafts.poll() if self.drafts is not None else None
        features = NO_FEATURES if drafter is None else drafter.features
        block = self.scheduler.canvas_tokens if drafter is None else drafter.block_size
        max_block = self.lengths.most_tokens(block)
        self._use(self._preparation.prepare(self._runner, features, max_block, progress))
        if drafter is not None:
            self._attach(drafter)

    def submit(
        self, request: GenerationRequest, listener: Listener, on_step_end: StepEnd = lambda: None
    ) -> TokenSequence:
        """Queue a request; both listeners are called on the engine's thread."""
        self._refuse_if_stopping()
        limits = self.settings.scheduler
        room = (limits.max_sequences + limits.max_waiting) * (REPLAY_ROOM if request.replay else 1)
        if len(self._sequences) >= room:
            raise QueueFullError(f"{room} sequences run and wait already")
        sequence = TokenSequence(next(self._ids), request, self._clock())
        self._sequences.add(sequence)

        def add() -> None:
            self._listeners.add(sequence, listener, on_step_end)
            self.lengths.add(sequence)
            self.scheduler.add(sequence)
            # An earlier attempt may have broken off after its last token.
            self._end_if_whole(sequence)

        self._inbox.post(add)
        # Checked again: a loop that stops later than this empties the inbox and calls the listener.
        self._refuse_if_stopping()
        return sequence

    def forget_prefixes(self) -> None:
        """Compute coming prompts in full, whatever was computed before; any thread may ask."""
        self._inbox.post(self._pages.forget_contents)

    def cancel(self, sequence: TokenSequence) -> None:
        """Forget a sequence and free its pages; harmless when it has already ended."""
        self._inbox.post(lambda: self._forget(sequence))

    def resume(self, sequence: TokenSequence, grammar: Grammar) -> None:
        """Go on with a sequence that awaits a parser, which `grammar` has; any thread may ask."""

        def go_on() -> None:
            if sequence in self._sequences:
                sequence.grammar = grammar
                self._end_if_whole(sequence)

        self._inbox.post(go_on)

    def load(self) -> Load:
        """Return the present load; any thread may ask."""
        scheduler, pages = self.scheduler, self._pages
        counts = len(scheduler.running), len(scheduler.waiting), scheduler.settings.max_sequences
        return Load(*counts, pages.used, pages.num_pages)

    def start(self) -> None:
        """Run the loop on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the present step."""
        self._stopping.set()
        self._inbox.post(lambda: None)
        if self._thread is not None:
            self._thread.join()
        if self.drafts is not None:
            self.drafts.close()

    def step(self) -> bool:
        """Run one iteration; return whether there may be more to do at once.

        Listeners hear what it gained while the next step computes, or at once if that has to wait.
        """
        started = self._clock()
        self._inbox.drain()
        times, preempted = DraftTimes(), False
        step = self._ahead.take()
        if step is None:
            times, rows, preempted = self._next_rows()
            step = PlannedStep(rows, partial(self._runner.run, rows))
        if not step.rows:
            self.conclude()
            self._publish()
            # A sequence that was to run may have given way to another, whose turn is next.
            return preempted
        with self.watch.step():
            result = step.read(partial(self._overlap, step.rows))
        ended_at = self._clock()
        self.lengths.observe_step(step.rows, result.seconds)
        rows, result = self._ahead.of_running(step.rows, result)
        progress = [
            self.scheduler.commit(row, outcome)
            for row, outcome in zip(rows, result.rows, strict=True)
        ]
        self._keep_features(progress, result)
        self._request_drafts()
        self._pending_step = FinishedStep(progress, result, times, ended_at)
        self.lengths.observe_acceptance(progress)
        for sequence in self._pending_step.ended:
            self._remove(sequence)
        if self._next_step_waits():
            self.conclude()
        self.metrics.count_step_seconds(result.seconds, times, self._clock() - started)
        self._publish()
        return True

    def _overlap(self, rows: tuple[Row, ...]) -> None:
        """Do what can be done while the target computes `rows`."""
        if not self._preparation.under_way:
            self._ahead.follow(rows, self._runner, self.lengths.prompt_room)
        # The step before is counted and its listeners are called.
        self.conclude()

    def conclude(self) -> None:
        """Count what the last step gained and call its listeners, unless that has been done."""
        step, self._pending_step = self._pending_step, None
        if step is None:
            return
        step.account()
        self.metrics.count_step(step.progress)
        ended = step.ended
        # Before any listener is called.
        for sequence in ended:
            self.metrics.count_finished(sequence)
        self._listeners.tell(step.progress, step.result)
        for sequence in ended:
            self._listeners.forget(sequence)

    def _ready_for(self, drafter: DrafterDescription) -> bool:
        """Whether there are steps for a drafter; if not, have them made."""
        features, max_block = drafter.features, self.lengths.most_tokens(drafter.block_size)
        if self._runner.compiled_for(features, max_block):
            return True
        if self._preparation.begin(features, max_block, self._use):
            return False
        # Tokens that were gained shall not wait for it, and the self-test overwrites pages.
        self.conclude()
        self.scheduler.preempt_all()
        self._use(self._preparation.prepare(self._runner, features, max_block))
        return True

    def _use(self, prepared: ReadySteps) -> None:
        """Run prepared steps from now on."""
        if prepared.runner is not self._runner:
            self._runner.take_steps(prepared.runner)
        measured, exactness = prepared.measured, prepared.exactness
        if exactness is not None:
            self.exactness = exactness
            self.metrics.publish_exactness(exactness)
            if exactness.padded:
                limits = self.settings.scheduler
                tokens = min(limits.max_step_tokens, exactness.step_tokens)
                self.scheduler.settings = replace(limits, max_step_tokens=tokens)
        self.scheduler.max_block = self.lengths.use_blocks(prepared.max_block)
        self.lengths.costs = CostModel(measured.seconds, measured.context_seconds)
        self.watch.expect(measured.slowest(self.settings.scheduler.max_context_tokens))
        # Pages written so far have no features of this form, so nothing can be drafted from them:
        # their sequences are decoded plainly to the end, and no others take them over.
        self._pages.forget_contents()
        for sequence in self.scheduler.running:
            sequence.draftable = sequence.names_pages = False
        if prepared.features.layer_ids:
            sizes = self.settings.num_pages, self.settings.page_size
            self._features = FeatureStore(*sizes, self._runner.feature_width)

    def _attach(self, drafter: DrafterDescription) -> None:
        """Draft with a drafter for which there are steps."""
        self.scheduler.max_block = self.lengths.use_blocks(drafter.block_size)
        self.lengths.forget_acceptance()
        costs = self.lengths.costs
        if self.drafts is not None and self._features is not None and costs is not None:
            costs.drafts = DraftCosts(
                drafter.block_size, drafter.step_seconds, drafter.shortest_step_seconds
            )
            self.drafts.use_features(self._features)

    def _next_rows(self) -> tuple[DraftTimes, tuple[Row, ...], bool]:
        """Collect drafts and plan; return also whether a sequence was preempted."""
        times = DraftTimes()
        if self.drafts is not None:
            arrived = self.drafts.poll(self._ready_for)
            if arrived is not None:
                self._attach(arrived)
            times = self._collect("all" if self.settings.draft_groups == 1 else "none")
        rows, preempted = self._plan()
        if not rows and self.drafts is not None and self.drafts.caches.awaiting:
            times = self._collect("any")
            rows, preempted = self._plan()
        return times, rows, preempted

    def _collect(self, wait: Literal["none", "any", "all"]) -> DraftTimes:
        assert self.drafts is not None
        before = self.drafter
        times = self.drafts.collect(wait=wait)
        after = self.drafter
        if before is not None and after is not None and 0 < before.version != after.version:
            # Acceptance says little of other weights.
            self.lengths.forget_acceptance()
        self.lengths.observe_drafting(times)
        self.metrics.late_drafts.inc(times.missed)
        return times

    def _plan(self) -> tuple[tuple[Row, ...], bool]:
        """Return the rows of the next step, and whether a sequence was preempted for them."""
        max_rows = None
        if self.settings.draft_groups == 2 and self.drafter is not None:
            max_rows = -(-len(self.scheduler.running) // 2)
        rows = self.scheduler.plan(max_rows, self.lengths.prompt_room)
        preempted = list(self.scheduler.preempted)
        self.scheduler.preempted.clear()
        for sequence in preempted:
            self.metrics.preemptions.inc()
            if self.drafts is not None:
                self.drafts.caches.release(sequence)
        return rows, bool(preempted)

    def _keep_features(self, progress: list[SequenceProgress], result: StepResult) -> None:
        if self._features is None:
            return
        for change, features in zip(progress, result.features, strict=True):
            row = change.row
            self._features.write(row.sequence.pages, row.start, features[: change.committed_count])

    def _request_drafts(self) -> None:
        """Draft by prompt lookup, send new features, and ask for drafts where that pays."""
        drafter = self.drafter if self._features is not None else None
        block_size = drafter.block_size if drafter is not None else 1
        prompt_tokens = self.scheduler.prompt_tokens
        draft_lengths = self.lengths.decide(self.scheduler.running, block_size, prompt_tokens)
        if self.drafts is None or drafter is None:
            return
        if draft_lengths:
            usual = self.lengths.wait_seconds(draft_lengths)
            patient = max(self.settings.draft_patience_seconds, usual)
            patient = min(patient, self.settings.draft_timeout_seconds)
            self.drafts.request(draft_lengths, patient, least_chance=self.lengths.least_chance)
        self.drafts.send_to_learn(self.scheduler.running)

    def _next_step_waits(self) -> bool:
        """Whether the next step cannot be launched at once, so that there is time before it."""
        running = self.scheduler.running
        waits = any if self.settings.draft_groups == 1 else all
        return not running or waits(sequence.awaiting_draft for sequence in running)

    def _end_if_whole(self, sequence: TokenSequence) -> None:
        if sequence.grammar is not None and sequence.grammar.ended:
            sequence.finish_reason = FinishReason.STOP
            self._listeners.end(sequence)
            self._forget(sequence)

    def _forget(self, sequence: TokenSequence) -> None:
        self._remove(sequence)
        self._listeners.forget(sequence)

    def _remove(self, sequence: TokenSequence) -> None:
        self._sequences.discard(sequence)
        self.scheduler.remove(sequence)
        if self.drafts is not None:
            self.drafts.caches.release(sequence)
        self.lengths.forget(sequence)

    def _refuse_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise EngineStoppedError("the engine has stopped")

    def _publish(self) -> None:
        """Tell the drafter which sequences are over, and publish the load."""
        if self.drafts is not None:
            self.drafts.tell_released()
        self.metrics.publish_load(self.load(), attached=self.drafter is not None)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self.step():
                    # A new drafter is noticed between two waits.
                    self._inbox.wait()
        except Exception:
            logger.exception("the engine failed")
            self._stopping.set()
            self._on_failure()
        self.conclude()
        self._inbox.drain()
        self._listeners.fail("the engine stopped")
