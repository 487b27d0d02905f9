"""Debian's Prometheus and promtool, unpacked in a folder of their own, and a server that scrapes what it is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.runtimes.install import cache
from tools.debian import telling
from tools.debian.apt import Packages
from tools.debian.commands import LackingError, output
from tools.debian.telling import Say
from tools.debian.tree import Tree

VERSION = "2.42."
SHORT_S, START_S = 60, 30
SECOND = "1s"


def install(say: Say = telling.silence) -> Path:
    """Return the folder of the programs, made now if it is not there yet. ``LackingError`` where that cannot be."""
    tree = Tree(packages=Packages(base=("prometheus",)), finish=_finish, decided_by=[VERSION])
    return tree.kept_in(cache().with_name("prometheus"), telling.timed(say)) / "usr" / "bin"


def _finish(root: Path) -> Mapping[str, object]:
    """Keep the programs, without the pages that they could serve."""
    shutil.rmtree(root / "usr" / "share")
    said = output([str(root / "usr/bin/promtool"), "--version"], deadline_s=SHORT_S)
    if f"version {VERSION}" not in said:
        raise LackingError(f"promtool says {said.strip()!r}, wanted is {VERSION}x: the mirror has another version")
    return {"version": said.split("version ", 1)[1].split()[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A process to scrape, as deploy/prometheus/podmonitor.yaml names it."""

    job: str
    node: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A server that answers at ``url``."""

    url: str

    def query(self, text: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        result: list[dict[str, Any]] = self._get("query", query=text)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}?{query}", timeout=SHORT_S) as answer:
            return json.load(answer)["data"]


@contextmanager
def serving(programs: Path, folder: Path, port: int, rules: Path, targets: Sequence[Target]) -> Iterator[Prometheus]:
    """Prometheus, scraping every second until the end of the block."""
    configuration = {
        "global": {"scrape_interval": SECOND, "evaluation_interval": SECOND},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": target.job,
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{target.port}"], "labels": {"node": target.node}}],
            }
            for target in targets
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    command = [
        str(programs / "prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            url = f"http://127.0.0.1:{port}"
            _until_ready(url, process, folder / "prometheus.log")
            yield Prometheus(url=url)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=SHORT_S):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise LackingError(f"Prometheus does not start: {log.read_text()[-600:]}") from None
            time.sleep(0.1)
