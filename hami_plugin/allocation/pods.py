"""The node's pods as the API server lists them, in their order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hami_plugin.model.ports import PodFeed
from hami_plugin.model.views import PodView, revision
from hami_plugin.process.concurrency import Watched


class PodTable:
    """Pods by UID. Those that came in one list are ordered by creation, as the kubelet orders them; later ones follow.

    ``ranks`` says how sure that order is: pods of one list that were created in the same second share a rank.
    ``changes`` moves with every change; its value says whether a first list has arrived. ``gone`` is called for each
    pod that was deleted or has ended, ``first`` with the first list, before anybody hears of it.
    """

    def __init__(
        self, gone: Callable[[PodView], None] = lambda _pod: None, first: Callable[[], None] = lambda: None
    ) -> None:
        self.changes: Watched[bool] = Watched(value=False)
        self.ranks: dict[str, int] = {}
        self.pods: tuple[PodView, ...] = ()
        self._pods: dict[str, PodView] = {}
        self._gone = gone
        self._first = first

    @property
    def feed(self) -> PodFeed:
        return PodFeed(replace=self.replace, update=self.update, delete=self.delete)

    def get(self, uid: str) -> PodView | None:
        return self._pods.get(uid)

    def named(self, namespace: str, name: str) -> PodView | None:
        return next((pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def replace(self, pods: Sequence[PodView]) -> None:
        """A whole list: pods that are missing from it are gone."""
        listed = {pod.uid: pod for pod in sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name))}
        missing = [pod for uid, pod in self._pods.items() if uid not in listed]
        kept = [uid for uid in self._pods if uid in listed]
        new = {uid: pod for uid, pod in listed.items() if uid not in self._pods}
        self._take({uid: self._newer(listed[uid]) for uid in kept} | new)
        self.ranks = {uid: self.ranks[uid] for uid in kept}
        self._rank(new.values())
        for pod in missing:
            self._gone(pod)
        for pod in listed.values():
            self._note_end(pod)
        if not self.changes.value:
            self._first()
        self.changes.set(value=True)
        self.changes.touch()

    def by_creation(self) -> None:
        """A kubelet has started: it admits what it finds by creation, in whatever order the pods were bound.

        Creation times are in seconds. Within one, the kubelet's order is chance.
        """
        self._take(dict(sorted(self._pods.items(), key=lambda item: item[1].created)))
        self.ranks = {}
        self._rank(self._pods.values())
        self.changes.touch()

    def update(self, pod: PodView) -> None:
        """A pod was added or changed, by the watch or by our own patch; an older version is dropped."""
        if pod.uid not in self._pods:
            self.ranks[pod.uid] = self._last_rank() + 1
        self._take({**self._pods, pod.uid: self._newer(pod)})
        self._note_end(pod)
        self.changes.touch()

    def patched(self, pod: PodView) -> None:
        """The answer to a patch of ours. It may come after the watch has deleted the pod, and is then ignored."""
        if pod.uid in self._pods:
            self.update(pod)

    def delete(self, pod: PodView) -> None:
        """A pod is gone."""
        known = self._pods.get(pod.uid)
        self._take({uid: one for uid, one in self._pods.items() if uid != pod.uid})
        self.ranks.pop(pod.uid, None)
        self._gone(known or pod)
        self.changes.touch()

    def _take(self, pods: dict[str, PodView]) -> None:
        self._pods, self.pods = pods, tuple(pods.values())

    def _rank(self, pods: Iterable[PodView]) -> None:
        """Rank pods that came together, in their order; a pod without a creation time shares its rank with none."""
        rank, created = self._last_rank(), ""
        for pod in pods:
            rank += not created or pod.created != created
            created = pod.created
            self.ranks[pod.uid] = rank

    def _last_rank(self) -> int:
        return max(self.ranks.values(), default=0)

    def _newer(self, pod: PodView) -> PodView:
        known = self._pods.get(pod.uid)
        if known is None:
            return pod
        # Kubernetes calls versions opaque; they are etcd's counter, and only our own patch's echo is compared here.
        return known if revision(known.resource_version) > revision(pod.resource_version) else pod

    def _note_end(self, pod: PodView) -> None:
        if pod.terminal:
            self._gone(pod)
