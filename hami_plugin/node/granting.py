"""What a container is to hold: its decision held against what it asked for, or whole devices where nobody decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hami_plugin.aio import Watched
from hami_plugin.errors import RefusalReason
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.refusals import Refusals
from hami_plugin.policy.identity import Held
from hami_plugin.policy.replicas import physical_id
from hami_plugin.protocol.decisions import Claim, Question, excess
from hami_plugin.protocol.register import DeviceInfo, Refuses
from hami_plugin.scheduler.engine.requests import is_part
from hami_plugin.vendor import Family


class Granting:
    """Of one family. ``RefusedError`` with the reason where a container can hold nothing. Nothing is written here."""

    def __init__(
        self,
        family: Family,
        question: Question,
        *,
        snapshot: Watched[Snapshot],
        ledger: Ledger,
        refusals: Refusals,
        serve_unannotated: bool,
    ) -> None:
        self._family = family
        self._question = question
        self._snapshot = snapshot
        self._ledger = ledger
        self._refusals = refusals
        self._serve_unannotated = serve_unannotated

    def decided(self, ids: Sequence[str], claim: Claim) -> Held:
        """As the decision has it, if that is not more than the container asked for."""
        granted = tuple(filter(None, (self._snapshot.value.device(grant.uuid) for grant in claim.grants)))
        registered = {device.uuid: self._family.node.register(device, False) for device in granted}
        advertised = {uuid: info.devmem for uuid, info in registered.items()}
        every_core = {device.uuid: self._family.node.every_core(device) for device in granted}
        too_much = excess(claim, self._question, advertised, every_core)
        if too_much:
            raise self._refusals.failed(RefusalReason.EXCEEDS_REQUEST, f"the decision grants {too_much}", claim.pod)
        self._require_whole(claim, registered)
        return self._held(ids, claim.pod, claim.container, claim.grants)

    def whole(self, ids: Sequence[str], pod: PodView, container: ContainerView) -> Held:
        """For a pod without a decision: the kubelet's devices as they are, if nobody else has a share of them."""
        if not self._serve_unannotated:
            raise self._refusals.refused(
                RefusalReason.NOT_SCHEDULED,
                f"pod {pod.key} asks for {self._question.resource}, "
                f"but {pod.scheduler or 'its scheduler'} decided nothing",
                (pod,),
                hint="let HAMi's scheduler place it, or set unannotatedPods: serve",
            )
        uuids = list(dict.fromkeys(physical_id(replica) for replica in ids))
        problem = self._not_whole(uuids, len(ids), pod)
        if problem:
            message = f"pod {pod.key} can only have whole devices, but got {problem}"
            raise self._refusals.refused(RefusalReason.DEVICE_SHARED, message, (pod,))
        devices = {device.uuid: device for device in self._snapshot.value.devices}
        held = self._held(ids, pod, container, [self._whole(devices[uuid]) for uuid in uuids])
        return replace(held, undecided=True)

    def _require_whole(self, claim: Claim, registered: Mapping[str, DeviceInfo]) -> None:
        """``RefusedError`` for a part of a device where this node hands out whole ones only, as it has announced."""
        whole_only, policy = self._family.node.whole_only, self._family.rules.policy
        if not whole_only or (policy and policy.limited(claim.pod)):
            return
        for grant in claim.grants:
            info = registered.get(grant.uuid)
            if info and is_part(info, grant.memory, grant.cores):
                message = (
                    f'container "{claim.container.name}" of pod {claim.pod.key} is granted a part of {grant.uuid} '
                    f"({grant.memory} of {info.devmem} of its memory, {grant.cores} of {info.devcore} of its cores); "
                    f"{Refuses(what='parts', why=whole_only)}"
                )
                hint = "let a scheduler place it that reads what the node says, or ask for whole devices"
                raise self._refusals.failed(RefusalReason.NOT_PREPARED, message, claim.pod, hint=hint)

    def _whole(self, device: Device) -> Grant:
        return Grant(
            uuid=device.uuid,
            word=self._family.word,
            memory=self._family.node.register(device, False).devmem,
            cores=self._family.node.every_core(device),
        )

    def _not_whole(self, uuids: Sequence[str], shares: int, pod: PodView) -> str:
        """What keeps the pod from having these devices alone, in words; empty where nothing does."""
        taken = {
            grant.uuid: held for held in self._ledger.held.values() if held.uid != pod.uid for grant in held.grants
        }
        for uuid in uuids:
            if uuid in taken:
                return f"{uuid} is shared by {taken[uuid].namespace}/{taken[uuid].pod}"
        return f"{shares} shares of {len(uuids)} devices" if len(uuids) < shares else ""

    def _held(self, ids: Sequence[str], pod: PodView, container: ContainerView, grants: Sequence[Grant]) -> Held:
        return Held(
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            resource=self._question.resource,
            ids=frozenset(ids),
            grants=tuple(self._placed(grant, pod, container) for grant in grants),
            init=container.init and not container.restartable,
        )

    def _placed(self, grant: Grant, pod: PodView, container: ContainerView) -> Grant:
        """Beside what all others hold of the same device. The journal keeps it, so that it is the same ever after.

        The kubelet asks once for each resource: what the container has already by another one is its place.
        """
        device = self._snapshot.value.device(grant.uuid)
        if device is None:
            return grant
        others: list[Grant] = []
        for held in self._ledger.on(grant.uuid):
            same = [one for one in held.grants if one.uuid == grant.uuid]
            if same and (held.uid, held.container) == (pod.uid, container.name):
                return replace(grant, notes=same[0].notes)
            others += same
        return self._family.node.place(grant, device, others)
