"""Real container runtimes from Debian's packages, in a folder of their own: the system's packages stay as they are.

The folder becomes a small root file system: the packages with everything that they depend on, unpacked and not
installed. apt works with lists, sources and a package state of its own, at the mirror that the machine's apt uses.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.runtimes import lacking
from tests.runtimes.lacking import SYSTEM_PATH, LackingError, tool

BASE = "bookworm"
PACKAGES = ("podman", "runc", "conmon", "busybox-static")  # with all that they depend on
LATER = "trixie"
LATER_PACKAGES = ("containerd",)  # alone: needs no newer libraries than the base has
VERSIONS = {"podman": "4.3.", "runc": "1.1.", "conmon": "2.1.", "containerd": "1.7."}

DEBIAN_SUITES = {BASE, LATER, "bullseye", "forky", "sid", "oldstable", "stable", "testing", "unstable"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ENVIRONMENT = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
SHORT_S, LONG_S = 60, 300
DONE = "complete.json"


def cache() -> Path:
    """Return the folder of all that is downloaded; ``RUNTIMES_CACHE`` overrides it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("RUNTIMES_CACHE") or home / "hami-plugin" / "runtimes")


def install(say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the root file system, made now if it is not there yet. A broken-off attempt is continued."""
    lacking.check()
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if not _is_complete(folder):
            _Installation(folder=folder, say=say, start=time.monotonic()).run()
    return folder / "root"


def _recipe() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _is_complete(folder: Path) -> bool:
    done = folder / DONE
    return done.exists() and json.loads(done.read_text())["recipe"] == _recipe()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LackingError(f"{lock.name} is held by another installation for {LONG_S} s; end it") from None
                time.sleep(0.2)
        yield


def output(command: Sequence[str], *, deadline_s: float, cwd: Path | None = None) -> str:
    """Run a command to its end and return what it printed. What fails says the command and its last words."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LackingError(f"{command[0]} did not end within {deadline_s} s: {' '.join(command)}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-600:]
        raise LackingError(f"{' '.join(command)} failed ({done.returncode}): {words}")
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installation:
    folder: Path
    say: Callable[[str], None]
    start: float

    def run(self) -> None:
        self._configure()
        self._apt("update", "--quiet", "--error-on=any")
        self._tell("package lists read")
        debs = self._download()
        self._tell(f"{len(debs)} packages, {sum(deb.stat().st_size for deb in debs) / 1e6:.0f} MB downloaded")
        root = self._unpack(debs)
        self._tell("packages unpacked")
        versions = _versions(root)
        (self.folder / DONE).write_text(json.dumps({"recipe": _recipe(), "versions": versions}, indent=1))
        shutil.rmtree(self.folder / "apt")
        self._tell(", ".join(f"{name} {version}" for name, version in versions.items()))

    def _tell(self, what: str) -> None:
        self.say(f"{time.monotonic() - self.start:6.1f} s  {what}")

    def _configure(self) -> None:
        apt = self.folder / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (apt / part).mkdir(parents=True, exist_ok=True)
        (apt / "status").write_text("")  # nothing is installed: so apt names every dependency
        (apt / "sources.list").touch(mode=0o600)
        (apt / "sources.list").write_text(sources(mirror()))
        (apt / "apt.conf").write_text(configuration(apt))

    def _apt(self, *arguments: str, cwd: Path | None = None) -> str:
        return output(
            [tool("apt-get"), f"--config-file={self.folder / 'apt' / 'apt.conf'}", *arguments],
            deadline_s=LONG_S,
            cwd=cwd,
        )

    def _download(self) -> list[Path]:
        archives = self.folder / "apt" / "cache" / "archives"
        self._apt("autoclean", "--quiet")  # what an earlier attempt got and the mirror has replaced since
        self._apt("install", "--quiet", "--yes", "--no-install-recommends", "--download-only", *PACKAGES)
        self._apt("download", "--quiet", *(f"{name}/{LATER}" for name in LATER_PACKAGES), cwd=archives)
        return sorted(archives.glob("*.deb"))

    def _unpack(self, debs: Sequence[Path]) -> Path:
        partial, root = self.folder / "root.partial", self.folder / "root"
        (self.folder / DONE).unlink(missing_ok=True)
        for old in (partial, root):
            if old.exists():
                shutil.rmtree(old)
        partial.mkdir(mode=0o755)
        for deb in debs:
            output([tool("dpkg-deb"), "--extract", str(deb), str(partial)], deadline_s=SHORT_S)
        partial.rename(root)
        return root


def mirror() -> str:
    """Return the Debian mirror that the machine's apt is set up with; ``RUNTIMES_MIRROR`` overrides it."""
    if chosen := os.environ.get("RUNTIMES_MIRROR"):
        return chosen
    targets = ("indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)")
    listing = output([tool("apt-get"), *targets, "Created-By: Packages"], deadline_s=SHORT_S)
    for line in listing.splitlines():
        uri, release, component = [*line.split(), "", "", ""][:3]
        if release in DEBIAN_SUITES and component == "main":
            return uri
    raise LackingError(
        "apt's sources name no Debian mirror; add one to /etc/apt/sources.list, or set RUNTIMES_MIRROR to its URL"
    )


def sources(uri: str) -> str:
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return "".join(f"deb {signed}{uri} {suite} main\n" for suite in (BASE, LATER))


def configuration(apt: Path) -> str:
    """Return apt's configuration. The machine's own, read before it, keeps its proxies and its credentials."""
    return f"""\
Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{apt}";
Dir::State::status "{apt}/status";
Dir::Cache "{apt}/cache";
APT::Default-Release "{BASE}";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
"""


def _versions(root: Path) -> Mapping[str, str]:
    """Run each program in ``root``, so that a missing library shows here."""
    found = {}
    for name, wanted in VERSIONS.items():
        said = output([tool("chroot"), str(root), name, "--version"], deadline_s=SHORT_S)
        number = re.search(r"\d+\.\d+\.\d+\S*", said)
        if number is None or not number[0].startswith(wanted):
            raise LackingError(f"{name} says {said.strip()!r}, wanted is {wanted}x: the mirror has another version")
        found[name] = number[0]
    return found


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    try:
        root = install(_print)
    except LackingError as error:
        _print(f"No real runtimes here: {error}")
        return 1 if os.environ.get("REQUIRE_RUNTIMES") else 0
    _print(f"The runtimes are in {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
