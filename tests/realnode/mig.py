"""The real node's cards, cut into MIG instances: what there is of them, and the daemon killed at one moment."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.protocol.nodes import decode_json
from tests.realnode.daemon import Daemon
from tests.realnode.node import Node
from tests.realnode.release import QUICK, SIMULATION
from tests.realnode.servers import until
from tests.runtimes.simulated import HOOK, HOOK_SCRIPT
from vendors.nvidia.host import read_capabilities
from vendors.nvidia.simulation import NvmlSimulator
from vendors.nvidia.simulation.state import STATE, opened

REGISTER = "hami.io/node-nvidia-register"
JOURNAL = "/var/lib/hami-plugin/partitions-nvidia-NVIDIA"
TRAP = f"{SIMULATION}/trap"
SPECS = "/run/cdi"
AGAIN_S = 90
Place = tuple[int, str, int]
"""A card by its number, a profile, and the first slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The simulated cards behind the daemon."""

    daemon: Daemon

    @property
    def node(self) -> Node:
        return self.daemon.node

    @property
    def machine(self) -> NvmlSimulator:
        return self.daemon.machine()

    def prepare(self) -> None:
        """MIG mode is on, nodes are real, and the hook is a program that the node can run."""
        machine = self.machine
        machine.make_nodes_real()
        (machine.directory / HOOK).write_bytes(HOOK_SCRIPT.read_bytes())
        machine.inject("mig", value=1)
        trap = self.node.path(TRAP)
        trap.mkdir(exist_ok=True)
        (trap / "sitecustomize.py").write_bytes(Path(__file__).with_name("trap.py").read_bytes())

    def serve(self, **nvidia: object) -> None:
        """Have the daemon cut the cards, and await its register. Instances are handed over by CDI, if nothing else."""
        ways = {"deviceListStrategy": ["cdi-annotations"], "operatingMode": "mig", **nvidia}
        trapped = [{"name": "PYTHONPATH", "value": TRAP}]
        self.daemon.configure(nvidia=ways, config={"health": QUICK}, extraEnv=trapped)
        self.await_register()

    def await_register(self) -> None:
        until(lambda: any(self.offered().values()), "profiles in the register", 60)

    def offered(self) -> Mapping[int, set[str]]:
        """By card, the profiles that have a place in the register."""
        register = decode_json(self.node.annotation(REGISTER) or "[]")
        return {info.index: {one.name for one in info.mig_profiles if one.placements} for info in register}

    def there(self) -> Mapping[Place, str]:
        """The instances that exist, with their UUIDs, empty where only a GPU instance does."""
        found: dict[Place, str] = {}
        with opened(self.machine.directory / STATE) as state:
            for number, device in enumerate(state.devices):
                uuids = {one.owner: one.uuid.decode() for one in device.compute_instances if one.serial}
                for one in device.gpu_instances:
                    if one.serial:
                        profile = device.profiles[one.profile].name.decode()
                        found[number, profile, one.start] = uuids.get(one.serial, "")
        return found

    def numbers(self, place: Place) -> tuple[int, int]:
        """Of the GPU instance at a place, and of its compute instance."""
        card, profile, start = place
        with opened(self.machine.directory / STATE) as state:
            device = state.devices[card]
            for one in device.gpu_instances:
                if one.serial and (device.profiles[one.profile].name.decode(), one.start) == (profile, start):
                    (inner,) = [ci.id for ci in device.compute_instances if ci.serial and ci.owner == one.serial]
                    return one.id, inner
        raise LookupError(place)

    def nodes(self, place: Place) -> set[str]:
        """The device nodes of the instance at a place: its card's, and the two of its capabilities."""
        caps = read_capabilities(self.machine.directory / "proc").nodes(place[0], *self.numbers(place))
        return {f"/dev/{name}" for name in (f"nvidia{place[0]}", *caps)}

    def uuid(self, card: int) -> str:
        """The card's own name."""
        with opened(self.machine.directory / STATE) as state:
            return state.devices[card].uuid.decode()

    def await_there(self, *places: Place) -> float:
        """Wait until exactly these exist."""
        try:
            return until(lambda: set(self.there()) == set(places), "the instances", AGAIN_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.there()}\n{self.daemon.log()[-3000:]}") from error

    def specs(self) -> set[str]:
        """The instances that have a CDI spec."""
        return {path.stem.rpartition("_")[2] for path in self.node.path(SPECS).glob("hami-partition_*.json")}

    def listed(self) -> list[Mapping[str, object]]:
        """What `hami-plugin partitions` says in the daemon's container."""
        pod = self.daemon.pod()
        assert pod
        (status,) = pod["status"]["containerStatuses"]
        container = status["containerID"].rpartition("/")[2]
        how = ("ctr", "--namespace=k8s.io", "tasks", "exec", "--exec-id=partitions", container)
        return list(json.loads(self.node.run(*how, "hami-plugin", "partitions", "--json"))["partitions"])

    def lay_trap(self, moment: str) -> None:
        (self.node.path(TRAP) / "reached").unlink(missing_ok=True)
        (self.node.path(TRAP) / "wanted").write_text(moment)

    def await_trapped(self) -> None:
        until((self.node.path(TRAP) / "reached").exists, "the moment", 40)

    def kill(self) -> None:
        """End the daemon as a crash would, and wait until another process serves."""
        before = self.daemon.restarts()
        self.daemon.kill()
        self._await_again(before)

    @contextmanager
    def killed(self, away: int | None = None) -> Iterator[None]:
        """The daemon is killed, and nobody starts it again for a while: neither does the kubelet run.

        A card that is ``away`` does not answer until the next process has run for a while.
        """
        before, kubelet = self.daemon.restarts(), self.node.servers["kubelet"]
        kubelet.end(signal.SIGKILL)
        self.daemon.kill()
        try:
            if away is not None:
                self.machine.inject("lost", away)
            yield
        finally:
            kubelet.start()
        if away is not None:
            until(lambda: self.daemon.restarts() > before and self._has_looked(), "another process", AGAIN_S)
            self.machine.inject("back", away)
        self._await_again(before)

    def _has_looked(self) -> bool:
        """Whether the daemon has compared what exists with its journal."""
        try:
            return bool(self.listed())
        except (AssertionError, ValueError):
            return False

    def _await_again(self, before: int) -> None:
        until(lambda: self.daemon.restarts() > before and self.daemon.is_ready(), "another process", AGAIN_S)
        until(lambda: self.node.allocatable("nvidia.com/gpu") > 0, "the shares", AGAIN_S)

    def age_journal(self) -> None:
        """Write of all in the daemon's journal that it was made in another boot of the machine."""
        path = self.node.path(JOURNAL)
        journal = PartitionJournal(path, "another-boot")
        journal.load()
        assert journal.entries, "nothing was in the journal"
        for entry in list(journal.entries.values()):
            journal.put(replace(entry, boot="another-boot"), "kept")
        journal.close()

    def forget_journal(self) -> None:
        """The daemon's journal is lost."""
        self.node.path(JOURNAL).unlink()
