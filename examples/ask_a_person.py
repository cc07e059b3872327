"""An agent that asks before it acts; here the program answers, but a person may do so, days later."""

import pandacore as pc


@pc.agent(capabilities=["mail.send"])
async def mailer(task: pc.Task) -> str:
    """Writes a letter, and sends it once somebody has agreed."""
    if "send" not in task.answers:
        letter = f"Dear all, {task.text}"
        question = pc.Question(f"Send this? {letter}", id="send", schema={"type": "boolean"})
        raise pc.InputRequired(question, state={"letter": letter})
    return f"sent: {task.state['letter']}" if task.answers["send"] else "kept"


if __name__ == "__main__":
    with pc.Collective.local() as c:
        c.add(mailer)
        for event in c.stream("the pandas are back."):
            if isinstance(event, pc.QuestionAsked):
                print(event.question.id, "-", event.question.text)
                c.answer(event.run_id, event.question.id, True)
            elif isinstance(event, pc.RunFinished):
                print(event.result.output)
