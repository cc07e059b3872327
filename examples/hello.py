"""The smallest collective: one agent, one task."""

import pandacore as pc


@pc.agent(capabilities=["text.summarise"])
async def summariser(task: pc.Task) -> str:
    """Summarises a text by its first sentence."""
    return task.text.split(": ", 1)[-1].split(".")[0]


if __name__ == "__main__":
    with pc.Collective.local() as c:
        c.add(summariser)
        print(c.run("Summarise: Pandas eat bamboo. They sleep.").output)
