"""pandacore.Registry inside a LangGraph graph: a node assembles a team, one runs it, one swaps who failed."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from pandacore.registry import Registry

WANTED = ["search.web", "write"]
DOWN = {bytes([0]) * 32}  # an agent that does not answer

registry = Registry(seed=1)
for n, capability in enumerate(["search.web", "search.web", "write"]):
    registry.announce(bytes([n]) * 32, [capability], load=n)


class State(TypedDict):
    """Who does what, what came out, and who failed."""

    team: dict[str, bytes]
    outputs: dict[str, str]
    failed: list[bytes]


def assemble(state: State) -> dict[str, object]:
    """Choose the least loaded agents that can do it."""
    team = registry.assemble(WANTED)
    if not team.complete:
        raise RuntimeError(f"nobody for {team.missing}")
    return {"team": {member.capability: member.agent_id for member in team.members}}


def run(state: State) -> dict[str, object]:
    """Let every agent without an output work."""
    outputs, failed = dict(state["outputs"]), list(state["failed"])
    for capability, agent in state["team"].items():
        if capability in outputs:
            continue
        if agent in DOWN:
            failed.append(agent)
        else:
            outputs[capability] = f"{capability} by agent {agent[0]}"
    return {"outputs": outputs, "failed": failed}


def swap(state: State) -> dict[str, object]:
    """Replace failed members; the others keep their places and outputs."""
    team = dict(state["team"])
    for agent in state["failed"]:
        registry.set_alive(agent, False)
    for capability in [c for c, agent in team.items() if agent in state["failed"]]:
        replacement = registry.assemble([capability], exclude=list(team.values()))
        if not replacement.complete:
            raise RuntimeError(f"nobody left for {capability}")
        team[capability] = replacement.members[0].agent_id
    return {"team": team}


def finished(state: State) -> str:
    """Where to go after a run."""
    return END if len(state["outputs"]) == len(WANTED) else "swap"


graph = StateGraph(State)
graph.add_node("assemble", assemble)
graph.add_node("run", run)
graph.add_node("swap", swap)
graph.add_edge(START, "assemble")
graph.add_edge("assemble", "run")
graph.add_conditional_edges("run", finished, ["swap", END])
graph.add_edge("swap", "run")

if __name__ == "__main__":
    start: State = {"team": {}, "outputs": {}, "failed": []}
    final = graph.compile().invoke(start)
    print(final["outputs"], "after", len(final["failed"]), "swap")
