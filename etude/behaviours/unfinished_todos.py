"""To-do items left open: the agent made a list, ended its work, and items were neither done nor dropped."""

from __future__ import annotations

from etude.behaviours.base import Behaviour, Site, own_turns, steps_of
from etude.harness.tools.todo import ITEM, STATES
from etude.harness.trajectory import Trajectory

NAME = "unfinished_todos"
OPEN = ("open", "begun")


class UnfinishedTodos(Behaviour):
    def sites(self, trajectory: Trajectory) -> list[Site]:
        # A rollout that a limit ended had no chance to finish its list.
        if trajectory.stop not in ("finish", "final"):
            return []
        last = max((entry for entry, _ in own_turns(trajectory)), default=-1)
        # A sub-agent's list, which stands behind, is its own.
        lists = [step for step in steps_of(trajectory) if step.call.name == "todo" and step.turn <= last]
        lists = [step for step in lists if step.result is not None and step.result.error is None]
        if not lists:
            return []
        rows = [ITEM.fullmatch(line.strip()) for line in lists[-1].call.arguments.get("items", "").split("\n")]
        left = [row[2] for row in rows if row is not None and STATES[row[1].lower()] in OPEN]
        hint = f"These steps are still open: {'; '.join(left)[:200]}. Do them or drop them before you finish."
        return [Site(last, NAME, hint)] if left else []
