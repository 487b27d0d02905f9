"""What a container is to receive for a decision about it, by the family's own functions: the daemon's answer is held
against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cdi.edits import ContainerEdits
from hami_plugin.allocation.allocator import question_of
from hami_plugin.demo.stage import Stage
from hami_plugin.errors import RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import PodView
from hami_plugin.protocol.decisions import Claim, claims


def unlimited(stage: Stage, pod: PodView) -> bool:
    """Whether nothing in what the pod's containers received would hold them to their part of a device.

    Then a container that had all of the device would be given the same.
    """
    own = decided(stage, pod)
    try:
        every = _given(stage, [_of_all(stage, claim) for claim in own])
    except RefusedError:
        return False  # all of the device is nothing that could be given
    return _given(stage, own) == every


def _of_all(stage: Stage, claim: Claim) -> Claim:
    """The claim if its grants were all of their devices."""
    devices = {device.uuid: device for device in stage.devices}
    every = [(grant, devices[grant.uuid]) for grant in claim.grants]
    family = stage.family
    grants = tuple(
        replace(grant, memory=family.node.register(device, False).devmem, cores=family.node.every_core(device))
        for grant, device in every
    )
    return replace(claim, grants=grants)


def mixed_up(stage: Stage, pod: PodView, received: Mapping[str, ContainerEdits]) -> list[str]:
    """Where a container received another environment than is its own; empty when all is right."""
    told = _told(stage, decided(stage, pod))
    expected = {container.name: told.get(container.name, {}) for container in pod.containers}
    problems = []
    for name, env in expected.items():
        got = received[name].env
        if not env.items() <= got.items() or (got and not env):
            problems.append(f"container {name} has {dict(got)}, where {env} is its own")
    return problems


def decided(stage: Stage, pod: PodView) -> tuple[Claim, ...]:
    """What the decision at the pod gives its containers, by whichever of the family's resources they asked."""
    questions = [
        question_of(stage.family),
        *(question_of(stage.family, units) for units in stage.family.resources.units),
    ]
    found = {claim.container.name: claim for question in reversed(questions) for claim in claims(pod, question)}
    return tuple(found[container.name] for container in pod.containers if container.name in found)


def _told(stage: Stage, claims_: Sequence[Claim]) -> dict[str, Mapping[str, str]]:
    """The environment of each container, without what is named anew each time."""
    return {name: env for name, (env, _mounts, _files) in _given(stage, claims_).items()}


Given = tuple[Mapping[str, str], frozenset[str], int]
"""Variables, where something is mounted, and how many files are written for the container."""


def _given(stage: Stage, claims_: Sequence[Claim]) -> dict[str, Given]:
    """By container. Of the devices, nobody but this pod has anything."""
    hook = Path(stage.options["--hook-path"])
    host = HostFiles(paths=HostPaths(hook=hook, hook_view=hook))
    devices = {device.uuid: device for device in stage.devices}
    placed: list[Grant] = []
    given: dict[str, Given] = {}
    for claim in claims_:
        shares = []
        for grant in claim.grants:
            others = [other for other in placed if other.uuid == grant.uuid]
            own = stage.family.node.place(grant, devices[grant.uuid], others)
            shares.append(Share(grant=own, device=devices[grant.uuid]))
        placed += [share.grant for share in shares]
        shares.sort(key=lambda share: share.device.index)
        assignment = Assignment(pod=claim.pod, container=claim.container, shares=tuple(shares))
        one, other = (stage.family.node.inject(assignment, host) for _ in range(2))
        env = {key: value for key, value in one.edits.env.items() if other.edits.env.get(key) == value}
        given[claim.container.name] = env, frozenset(m.container_path for m in one.edits.mounts), len(one.files)
    return given
