"""An orchestrator of your own: pandacore chooses, forms and repairs the team; how agents run is up to you."""

import asyncio

from pandacore.registry import Registry
from pandacore.team_machine import TeamEffect, TeamEvent, TeamState

WANTED = {"search.web": 2, "write": 1}
SUBTASKS: list[tuple[str, list[int]]] = [("search.web", []), ("search.web", []), ("write", [0, 1])]
NAMES = list(WANTED)


async def work(agent: int, subtask: int) -> str:
    """What an agent does; agent 0 is down."""
    await asyncio.sleep(0)
    if agent == 0:
        raise ConnectionError("no route to agent 0")
    return f"subtask {subtask} by agent {agent}"


class Orchestrator:
    """Carries out what the team machine asks for, and tells it what happened."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.state = TeamState(list(WANTED.values()), [(NAMES.index(c), deps) for c, deps in SUBTASKS])
        self.events: asyncio.Queue[TeamEvent] = asyncio.Queue()
        self.timers: dict[tuple[str, int], asyncio.TimerHandle] = {}
        self.outputs: dict[int, str] = {}

    async def run(self) -> str:
        """Feed events until the team is done or cannot go on."""
        self.events.put_nowait(TeamEvent.Start())
        async with asyncio.TaskGroup() as tasks:
            while self.state.phase in ("forming", "running"):
                self.state, effects = self.state.step(await self.events.get())
                for effect in effects:
                    self.carry_out(effect, tasks)
        for timer in self.timers.values():
            timer.cancel()
        return self.state.phase

    def carry_out(self, effect: TeamEffect, tasks: asyncio.TaskGroup) -> None:
        """Do one thing; messages are plain calls here."""
        match effect:
            case TeamEffect.Match(wanted=wanted, without=without):
                exclude = [self.registry.id_of(slot) for slot in without]
                need = {NAMES[requirement]: count for requirement, count in wanted}
                team = self.registry.assemble(need, exclude=exclude)
                found = [(NAMES.index(m.capability), m.slot) for m in team.members]
                self.events.put_nowait(TeamEvent.Found(found))
            case TeamEffect.Reserve(agent=agent):
                self.events.put_nowait(TeamEvent.Accepted(agent))
            case TeamEffect.Dispatch(subtask=subtask, agent=agent):
                tasks.create_task(self.dispatch(subtask, agent))
            case TeamEffect.SetTimer(timer=timer, of=of):
                expired = TeamEvent.Expired(timer, of)
                later = asyncio.get_running_loop().call_later(5.0, self.events.put_nowait, expired)
                if old := self.timers.pop((timer, of), None):
                    old.cancel()
                self.timers[timer, of] = later
            case TeamEffect.View():
                print("team:", self.state.members)

    async def dispatch(self, subtask: int, agent: int) -> None:
        """Let an agent work, and report how it went."""
        try:
            self.outputs[subtask] = await work(agent, subtask)
            self.events.put_nowait(TeamEvent.Result(subtask, agent))
        except ConnectionError:
            self.events.put_nowait(TeamEvent.Suspected(agent))


if __name__ == "__main__":
    agents = Registry(seed=1)
    for n, capability in enumerate(["search.web"] * 3 + ["write"] * 2):
        agents.announce(bytes([n]) * 32, [capability], load=n)
    orchestrator = Orchestrator(agents)
    print(asyncio.run(orchestrator.run()), sorted(orchestrator.outputs.items()))
