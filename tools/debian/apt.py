"""Debian's apt with lists, sources and a package state of its own, at the mirror that the machine's apt uses."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian.commands import LackingError, output, tool

BASE, LATER = "bookworm", "trixie"
SUITES = {BASE, LATER, "bullseye", "forky", "sid", "oldstable", "stable", "testing", "unstable"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
REMEDY = "set RUNTIMES_MIRROR to the URL of a Debian mirror that this machine reaches"
SHORT_S, LONG_S = 60, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Names of packages: ``base`` with all that they depend on, ``alone`` without it; ``later`` are alone too, of a
    newer release where the base's are too old.
    """

    base: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Apt:
    """An apt that works in ``folder`` only. What it got there in an earlier attempt is not asked for again."""

    folder: Path

    def debs(self, packages: Packages) -> list[Path]:
        """Download packages and return their files. ``LackingError`` says what apt said."""
        archives = self.folder / "cache" / "archives"
        self._prepare(sources(mirror(), suites=(BASE, LATER) if packages.later else (BASE,)))
        self._run("autoclean", "--quiet")  # what an earlier attempt got and the mirror has replaced since
        if packages.base:
            self._run("install", "--quiet", "--yes", "--no-install-recommends", "--download-only", *packages.base)
        if alone := (*packages.alone, *(f"{name}/{LATER}" for name in packages.later)):
            self._run("download", "--quiet", *alone, cwd=archives)
        return sorted(archives.glob("*.deb"))

    def source(self, package: str, target: Path) -> None:
        """Download the files of the base's source package, named as ``name=version``, into a folder."""
        self._prepare(sources(mirror(), suites=(BASE,), kinds=("deb", "deb-src")))
        self._run("source", "--quiet", "--download-only", package, cwd=target)

    def _prepare(self, sources: str) -> None:
        for part in ("lists/partial", "cache/archives/partial"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").write_text("")  # nothing is installed: so apt names every dependency
        (self.folder / "sources.list").touch(mode=0o600)
        (self.folder / "sources.list").write_text(sources)
        (self.folder / "apt.conf").write_text(configuration(self.folder))
        self._run("update", "--quiet", "--error-on=any")

    def _run(self, *arguments: str, cwd: Path | None = None) -> None:
        command = [tool("apt-get"), f"--config-file={self.folder / 'apt.conf'}", *arguments]
        output(command, deadline_s=LONG_S, cwd=cwd, remedy=REMEDY)


def mirror() -> str:
    """Return the Debian mirror that the machine's apt is set up with; ``RUNTIMES_MIRROR`` overrides it."""
    if chosen := os.environ.get("RUNTIMES_MIRROR"):
        return chosen
    targets = ("indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)")
    listing = output([tool("apt-get"), *targets, "Created-By: Packages"], deadline_s=SHORT_S)
    for line in listing.splitlines():
        uri, release, component = [*line.split(), "", "", ""][:3]
        if release in SUITES and component == "main":
            return uri
    raise LackingError(
        "apt's sources name no Debian mirror; add one to /etc/apt/sources.list, or set RUNTIMES_MIRROR to its URL"
    )


def sources(uri: str, *, suites: Sequence[str], kinds: Sequence[str] = ("deb",)) -> str:
    """Return apt's list of sources at a mirror."""
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return "".join(f"{kind} {signed}{uri} {suite} main\n" for kind in kinds for suite in suites)


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
