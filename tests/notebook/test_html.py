"""What notebooks show: escaped, bounded, from what is at hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pandacore as pc
from pandacore.notebook import MAX_ROWS


@pc.agent(capabilities=["text.upper"], name="shouter & co")
async def upper(task: pc.Task) -> str:
    return f"<script>{task.text}</script>"


def parsed(html: str) -> ET.Element:
    """The fragment as XML: fails on anything that is not escaped."""
    return ET.fromstring(f"<div>{html.replace('<br>', '<br/>')}</div>")


def test_a_result_shows_its_output_its_team_and_a_bar_per_subtask() -> None:
    with pc.Collective.local() as c:
        c.add(upper)
        result = c.run("hello")
        html = result._repr_html_()
        whole = c._repr_html_()
    assert "&lt;script&gt;hello" in html
    assert "shouter &amp; co" in html
    assert len(list(parsed(html).iter("rect"))) == 1
    assert "1 agents" in "".join(parsed(whole).itertext())
    assert "text.upper" in whole


def test_a_failed_result_shows_why() -> None:
    with pc.Collective.local() as c:
        html = c.run("hello")._repr_html_()
    assert "NoTeam" in html
    parsed(html)


def test_large_collectives_stay_small_on_screen() -> None:
    collective = pc.Collective.local()
    agents = [pc.Agent(upper, capabilities=[f"skill.{n}"]) for n in range(2_000)]
    collective.add(*agents)
    html = collective._repr_html_()
    assert len(html) < 100_000
    assert f"… {2_000 - MAX_ROWS} more" in html
    parsed(html)
