"""The API client is there without the other client, and the package is whole for whoever asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def in_a_new_process(code: str) -> list[str]:
    """What ``code`` prints, by line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_other_client_and_what_it_stands_on_are_not_loaded():
    loaded = in_a_new_process("import sys, hami_plugin.app; print(*sys.modules, sep='\\n')")

    assert "kubernetes.aio.client.api_client" in loaded
    assert {name for name in loaded if name.split(".")[0] in ("requests", "oauthlib", "websocket")} == set()
    assert "kubernetes.client" not in loaded


def test_whoever_asks_the_package_for_more_gets_it():
    said = in_a_new_process(
        "import hami_plugin.cluster.bare, kubernetes\n"
        "print(kubernetes.__version__)\n"
        "print(kubernetes.client.CoreV1Api.__name__, kubernetes.aio.watch.Watch.__name__)\n"
        "from kubernetes import config\n"
        "print(config.load_kube_config.__name__)\n"
        "try:\n    kubernetes.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )

    assert int(said[0].split(".")[0]) >= 37
    assert said[1:3] == ["CoreV1Api Watch", "load_kube_config"]
    assert "has no attribute 'nothing'" in said[3]


def test_a_package_that_is_loaded_already_is_left_as_it_is():
    said = in_a_new_process(
        "import kubernetes\nbefore = kubernetes\nimport hami_plugin.cluster.bare, sys\n"
        "print(sys.modules['kubernetes'] is before, type(before).__name__)"
    )

    assert said == ["True module"]


def test_a_package_that_is_not_installed_is_named():
    said = in_a_new_process(
        "from hami_plugin.cluster.postponed import postpone\n"
        "try:\n    postpone('not_a_package')\nexcept Exception as error:\n    print(error)\n"
    )

    assert "not_a_package is not installed" in said[0]
