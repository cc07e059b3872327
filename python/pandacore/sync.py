"""The blocking face of a collective, for scripts, notebooks and tests."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from pandacore.agent import Agent
    from pandacore.collective import Collective
    from pandacore.gossip import AgentEntry
    from pandacore.gossip import Member as HostMember
    from pandacore.patterns.base import Machine
    from pandacore.task import Budget, Event, Result, Task
    from pandacore.team.driver import EventStream
    from pandacore.team.meaning import FoundAgent
    from pandacore.team.vetting import Verdict

__all__ = ["SyncCollective"]

T = TypeVar("T")

_CLOSE_S: Final = 5.0


class SyncCollective:
    """The blocking face of a :class:`Collective`, over an event loop in a private thread.

    Usable from any thread. Ctrl-C cancels the run that is waited for.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="pandacore", daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _open(self) -> None:
        self._thread.start()
        try:
            self._call(self._collective._start())
        except BaseException:
            self._stop()
            raise

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._collective._check_process()
            if not self._thread.is_alive() or self._loop.is_closed():
                raise errors.StateError(
                    "the collective is closed", hint="make a new one with Collective.local()"
                )
            if threading.current_thread() is self._thread:
                raise errors.StateError(
                    "a blocking call from inside an agent would wait for itself",
                    hint="make the agent a plain function, which runs in a thread",
                )
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt above all: the work must not go on unseen
            future.cancel()
            raise

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)

    def close(self) -> None:
        """Cancel what runs and end the private loop. Idempotent."""
        self._collective._check_process()
        if not self._thread.is_alive():
            return
        try:
            self._call(self._collective.close())
        finally:
            self._stop()

    def add(self, *agents: object, replicas: int = 1) -> list[Agent]:
        """See :meth:`Collective.add`."""

        async def add() -> list[Agent]:
            return self._collective.add(*agents, replicas=replicas)

        return self._call(add())

    def remove(self, agent: Agent) -> None:
        """See :meth:`Collective.remove`."""
        self._call(self._collective.remove(agent))

    def resubscribe(self, agent: Agent, subscription: str) -> None:
        """See :meth:`Collective.resubscribe`."""

        async def resubscribe() -> None:
            self._collective.resubscribe(agent, subscription)

        self._call(resubscribe())

    def attach(self, address: str) -> int:
        """See :meth:`Collective.attach`."""
        return self._call(self._collective.attach(address))

    def find(self, text: str, k: int = 10, *, threshold: float | None = None) -> list[FoundAgent]:
        """See :meth:`Collective.find`."""
        return self._call(self._collective.find(text, k, threshold=threshold))

    def standby(self, *agents: object, limit: int = 1) -> None:
        """See :meth:`Collective.standby`."""
        self._collective.standby(*agents, limit=limit)

    def wait_for(self, *capabilities: str, timeout_s: float = 30.0) -> None:
        """See :meth:`Collective.wait_for`."""
        self._call(self._collective.wait_for(*capabilities, timeout_s=timeout_s))

    def members(self) -> list[HostMember]:
        """See :meth:`Collective.members`."""
        return self._call(_later(self._collective.members))

    def all_agents(self) -> list[AgentEntry]:
        """See :meth:`Collective.all_agents`."""
        return self._call(_later(self._collective.all_agents))

    @property
    def seed_address(self) -> str:
        """See :attr:`Collective.seed_address`."""
        return self._call(_later(lambda: self._collective.seed_address))

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents of this process, in the order they were added."""
        return self._collective.agents

    def explain(self, agent: Agent | bytes) -> Verdict:
        """See :meth:`Collective.explain`."""

        async def explain() -> Verdict:
            return self._collective.explain(agent)

        return self._call(explain())

    def rate(self, agent: Agent | bytes, *, bad: bool) -> None:
        """See :meth:`Collective.rate`."""

        async def rate() -> None:
            self._collective.rate(agent, bad=bad)

        self._call(rate())

    def run(
        self,
        task: Task | str,
        *,
        pattern: str | type[Machine] | tuple[type[Machine], type[Machine]] = "star",
        budget: Budget | None = None,
        planner: str = "auto",
    ) -> Result:
        """See :meth:`Collective.run`."""
        return self._call(self._collective.run(task, pattern=pattern, budget=budget, planner=planner))

    def answer(self, run: str, question_id: str, value: Any) -> None:
        """See :meth:`Collective.answer`; from another thread, or between the events of :meth:`stream`."""
        self._call(self._collective.answer(run, question_id, value))

    def stream(
        self,
        task: Task | str,
        *,
        pattern: str | type[Machine] | tuple[type[Machine], type[Machine]] = "star",
        budget: Budget | None = None,
        planner: str = "auto",
    ) -> Iterator[Event]:
        """See :meth:`Collective.stream`; leaving the iteration early cancels the run."""

        async def begin() -> EventStream:
            return self._collective.stream(task, pattern=pattern, budget=budget, planner=planner)

        stream = self._call(begin())
        try:
            while (event := self._call(_next(stream))) is not None:
                yield event
        finally:
            if self._thread.is_alive():
                self._call(stream.aclose())

    def _repr_html_(self) -> str:
        return self._collective._repr_html_()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._collective)[1:]}"


async def _later(read: Callable[[], T]) -> T:
    return read()


async def _next(stream: EventStream) -> Event | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None
