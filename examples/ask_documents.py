"""An agent that asks a model over gRPC. The extractive model needs no weights and no key: it only quotes."""

import pandacore as pc

DOCUMENTS = [
    pc.Document("1", "Bamboo", ("Bamboo is a grass.", "Some kinds grow 90 cm in a day.")),
    pc.Document("2", "Giant panda", ("The giant panda lives in China.", "It eats mostly bamboo.")),
]


@pc.agent(capabilities=["answer.question"])
async def answerer(task: pc.Task, ctx: pc.AgentContext) -> str:
    """Answers from the given documents."""
    request = pc.ChatRequest(
        (pc.Message.user(task.text),), documents=task.documents, metadata={"task": "answer"}
    )
    return (await ctx.model.chat(request)).text


if __name__ == "__main__":
    with pc.Collective.local(model="extractive") as c:
        c.add(answerer)
        result = c.run(pc.Task("What does the giant panda eat?", documents=DOCUMENTS))
        print(result.output, f"({result.usage.total_tokens} tokens)")
