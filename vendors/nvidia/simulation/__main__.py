"""Disturb a running simulation by hand: ``python -m vendors.nvidia.simulation DIR FAULT [--device N] [--value V]``."""

from __future__ import annotations

from pathlib import Path

import click

from hami_plugin.errors import HamiError
from vendors.nvidia.simulation import NvmlSimulator
from vendors.nvidia.simulation.faults import FAULTS

_EPILOG = "\b\nFaults:\n" + "\n".join(f"  {name:16} {fault.help}" for name, fault in FAULTS.items())


@click.command(epilog=_EPILOG)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("fault")
@click.option("--device", type=int, help="Position in the profile; all devices when left out.")
@click.option("--value", default="0", help="What the fault asks for.")
def main(directory: Path, fault: str, device: int | None, value: str) -> None:
    """Cause FAULT in the simulated machine that lives in DIRECTORY."""
    try:
        NvmlSimulator.attach(directory).inject(fault, device, value)
    except (HamiError, ValueError) as error:
        raise click.ClickException(str(error)) from error


main()
