"""Whose trial comes next, with verifiers of several computations."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from blockdraft_server.routing.link import VerifierLink
from blockdraft_server.routing.pool import Trials


@dataclass
class Link:
    """A healthy verifier with so many sequences of which nothing is known."""

    untried: int = 0


class Verifiers:
    """Healthy verifiers by computation; `changed` lets everybody look again."""

    def __init__(self, **links: Link) -> None:
        self.links = links
        self.trials = Trials(lambda wanted: cast(list[VerifierLink], self._of(wanted)), self.wake)
        self._polled = asyncio.Event()

    def _of(self, computation: str | None) -> list[Link]:
        return [link for name, link in self.links.items() if computation in (None, name)]

    @property
    def kept(self) -> Any:
        return self.trials.kept_link

    def begin(self, computation: str | None) -> asyncio.Task[Any]:
        async def changed(_: str | None) -> None:
            await self._polled.wait()

        return asyncio.ensure_future(self.trials.begin(computation, changed))

    def wake(self) -> None:
        self._polled.set()
        self._polled = asyncio.Event()

    async def look(self) -> None:
        self.wake()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_trial_whose_verifiers_are_away_keeps_no_other_waiting() -> None:
    verifiers = Verifiers(there=Link())
    first, second = verifiers.begin("away"), verifiers.begin("there")
    await verifiers.look()
    assert not first.done()
    assert second.done()
    assert second.result() is verifiers.links["there"]
    # One at a time, also of another computation.
    verifiers.links["away"] = Link()
    await verifiers.look()
    assert not first.done()
    verifiers.trials.end()
    await verifiers.look()
    assert first.result() is verifiers.links["away"]


async def test_trials_take_turns_in_the_order_asked_on_the_verifier_soonest_free() -> None:
    verifiers = Verifiers(one=Link(untried=2), other=Link(untried=1))
    first, second = verifiers.begin(None), verifiers.begin(None)
    await verifiers.look()
    assert verifiers.kept is verifiers.links["other"]
    assert not first.done()
    verifiers.links["other"].untried = 0
    await verifiers.look()
    assert first.done()
    assert not second.done()
    verifiers.trials.end()
    assert verifiers.kept is verifiers.links["other"]
    await verifiers.look()
    assert second.result() is verifiers.links["other"]
    verifiers.trials.end()
    assert verifiers.kept is None


async def test_who_waits_no_longer_keeps_no_verifier() -> None:
    verifiers = Verifiers(one=Link(untried=1))
    first, second = verifiers.begin("one"), verifiers.begin("one")
    await verifiers.look()
    for waiting in (first, second):
        assert verifiers.kept is verifiers.links["one"]
        waiting.cancel()
        await verifiers.look()
    assert verifiers.kept is None


async def test_who_gives_up_wakes_those_whose_turn_it_then_is() -> None:
    verifiers = Verifiers(busy=Link(untried=1), free=Link())
    first, second = verifiers.begin("busy"), verifiers.begin("free")
    await verifiers.look()
    assert not second.done()
    first.cancel()
    await settled()
    assert second.result() is verifiers.links["free"]
    # So does who ends a trial.
    third = verifiers.begin("free")
    await settled()
    verifiers.trials.end()
    await settled()
    assert third.result() is verifiers.links["free"]
