"""A team of three agents on a plan of your own: two readers in parallel, then an editor; streamed."""

import asyncio

import pandacore as pc


@pc.agent(capabilities=["text.count"])
async def counter(task: pc.Task) -> int:
    """Counts words."""
    return len(task.text.split())


@pc.agent(capabilities=["text.longest"])
def longest(task: pc.Task) -> str:
    """Finds the longest word; a plain function, so it runs in a worker thread."""
    return max(task.text.split(), key=len)


@pc.agent(capabilities=["report.write"])
async def editor(task: pc.Task, ctx: pc.AgentContext) -> str:
    """Writes one sentence out of what the others found."""
    ctx.progress("writing")
    return f"{task.inputs['count']} words, the longest is {task.inputs['longest']!r}"


PLAN = pc.Plan(
    [
        pc.Subtask("count", "text.count", "giant pandas eat bamboo"),
        pc.Subtask("longest", "text.longest", "giant pandas eat bamboo"),
        pc.Subtask("report", "report.write", "write the report", ["count", "longest"]),
    ]
)


async def main() -> None:
    """Run the plan and print its life."""
    async with pc.Collective.local() as c:
        c.add(counter, longest, editor)
        async for event in c.stream(pc.Task("Describe the text.", plan=PLAN)):
            match event:
                case pc.SubtaskStarted(subtask_id=name, agent=agent):
                    print(f"{agent} works on {name}")
                case pc.SubtaskCompleted(subtask_id=name, output=output):
                    print(f"{name}: {output}")
                case pc.RunFinished(result=result):
                    print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
