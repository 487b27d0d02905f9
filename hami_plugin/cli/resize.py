"""``hami-plugin resize``: how much of its devices a container that runs may use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from hami_plugin.cli import pages
from hami_plugin.cli.console import show_table
from hami_plugin.errors import HamiError

HEADER = ("DEVICE", "MEMORY", "WAS", "CORES", "WAS")


@click.command(epilog="Example: hami-plugin resize team/trainer --gpumem 8000")
@click.argument("pod")
@click.option("--container", default="", help="Which container, if several of the pod have devices.")
@click.option("--gpumem", type=click.IntRange(min=1), help="MiB of each of its devices.")
@click.option("--gpucores", type=click.IntRange(min=1, max=100), help="Percent of the cores of each of its devices.")
@pages.daemons_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Memory is in MiB.")
def resize(pod: str, *, container: str, gpumem: int | None, gpucores: int | None, url: str, as_json: bool) -> None:
    """Change what a running container of POD (NAME or NAMESPACE/NAME) may use of its devices.

    More is given only if the devices have it, and less only if the container uses no more. If a step fails, all of it
    is undone. Memory counts at the next allocation; a process reads its cores when it starts.
    """
    namespace, slash, name = pod.rpartition("/")
    request = {"namespace": namespace if slash else "default", "pod": name, "container": container}
    amounts = {"memory": gpumem, "cores": gpucores}
    answer = pages.resize(url, request | {key: value for key, value in amounts.items() if value is not None})
    if not answer["resized"]:
        raise HamiError(f"nothing was changed: {answer.get('why', '')}")
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    click.echo(f"{answer['namespace']}/{answer['pod']}, container {answer['container']}")
    show_table([HEADER, *_rows(answer["devices"])], right=(1, 2, 3, 4))


def _rows(devices: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for one in devices:
        memory, cores = one["memory"], one["cores"]
        yield (
            one["uuid"],
            _size(memory["after"]),
            _size(memory["before"]),
            _part(cores["after"]),
            _part(cores["before"]),
        )


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib else "all"


def _part(percent: int) -> str:
    return f"{percent}%" if percent else "all"
