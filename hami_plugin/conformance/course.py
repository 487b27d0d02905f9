"""The way a pod takes over a node, container by container, and each step of it as a recorded question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.conformance import values
from hami_plugin.conformance.decisions import CIRCUMSTANCES, Situation, timeless
from hami_plugin.parity import Json
from hami_plugin.scheduler.engine.fit import Granted, Refused
from hami_plugin.scheduler.engine.pods import Demands, Placed, Site, Step, Walk, refusal
from hami_plugin.scheduler.engine.scores import Weights
from hami_plugin.scheduler.engine.states import DeviceState


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a pod asks for in a recorded situation, and how its devices are to be weighed."""

    asked: Situation
    wanted: Demands
    weighing: Weights

    def walk(self, site: Site) -> Walk:
        """The way over one node, before its first step."""
        pod, policies = self.asked.pod, self.asked.rules
        return Walk(pod=pod, rules=policies, site=site, weighing=self.weighing, circumstances=CIRCUMSTANCES)

    def finish(self, walk: Walk, other: Mapping[int, Granted] | None = None) -> str:
        """Walk on to the end, with other outcomes at some steps. The reason why it ends early, or nothing."""
        for container, asked in zip(self.asked.pod.containers, self.wanted, strict=True):
            for device_type, demand in asked.items():
                number = len(walk.steps)
                outcome = walk.ask(container, demand)
                outcome = (other or {}).get(number, outcome)
                if isinstance(outcome, Refused):
                    return refusal(outcome, walk.site.node)
                if conflict := walk.take(device_type, outcome.grants):
                    return conflict
            walk.close(container)
        return ""

    def question(self, step: Step, states: Sequence[DeviceState] | None = None) -> Json:
        """The step as a question about one container, in the recorder's words."""
        context = step.context
        known = self.asked.known[context.demand.device_type]
        given = {device_type: pieces for device_type, pieces in context.given.items() if any(pieces)}
        return {
            "fn": "fit",
            "vendor": context.demand.device_type,
            "devices": [values.device(state) for state in states or step.states],
            "request": known.parity.request(context.demand, known.parity.unset_percent),
            "pod": self.asked.question["pod"],
            "node": self.node(context.node.name),
            "pair_scores": values.scores(context.links),
            "allocated": {
                device_type: [[values.granted(grant) for grant in piece] for piece in pieces]
                for device_type, pieces in given.items()
            },
            "apply": True,
        }

    def node(self, name: str) -> Json:
        """A node as it was recorded."""
        found: Json = next(node for node in self.asked.question["nodes"] if node["name"] == name)
        return found

    def idle(self, key: str, text: str, placed: Placed) -> bool:
        """Whether HAMi says here that the pod has nothing of a family: an empty entry for each container."""
        empty = {device_type: tuple(() for _ in self.asked.pod.containers) for device_type in self.asked.known}
        idle = [family for family in self.asked.families if not any(placed.given.get(family.device_type, ()))]
        nothing = [timeless(family.rules.patch(family, self.asked.pod, empty)).get(key) for family in idle]
        return text in nothing or (text == "null" and "[]" in nothing)
