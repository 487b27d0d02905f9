"""Pins a version of a product: ``python -m tests.realnode.pin kubernetes 1.37.2`` writes its ``go.mod`` and ``go.sum``.

Kubernetes' own ``go.mod`` takes its libraries from folders that its Go module does not have; so each of them is
replaced by its published module of the same version.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.realnode.modules import CONTAINERD, DOWNLOAD_S, FOLDER, KUBERNETES, REMEDY, RUNC, Go, Product
from tools.debian.commands import LackingError

PRODUCTS = {product.name: product for product in (KUBERNETES, CONTAINERD, RUNC)}


def description(product: Product, version: str, upstream: str) -> str:
    """Return a ``go.mod`` by which the programs of ``product`` are built; ``upstream`` is the product's own."""
    go, debug = (re.search(rf"^{what} (.+)$", upstream, re.MULTILINE) for what in ("go", "godebug"))
    staged = re.findall(r"^\t(\S+) => \./staging/", upstream, re.MULTILINE)
    library = re.sub(r"^v1\.", "v0.", version)
    lines = [
        f"// Written by: python -m tests.realnode.pin {product.name} {version.removeprefix('v')}",
        f"module {product.name}",
        f"go {go[1]}" if go else "",
        f"godebug {debug[1]}" if debug else "",
        _block("tool", [product.package(name) for name in sorted(product.commands)]),
        f"require {product.path} {version}",
        _block("replace", [f"{name} => {name} {library}" for name in staged]) if staged else "",
    ]
    return "\n\n".join(line for line in lines if line) + "\n"


def _block(verb: str, lines: Sequence[str]) -> str:
    return f"{verb} (\n" + "".join(f"\t{line}\n" for line in lines) + ")"


def pin(product: Product, version: str) -> Path:
    """Write the files of this version, ``v1.37.2``; return their folder."""
    minor = version.removeprefix("v").rpartition(".")[0]
    folder = product.pinned(minor).folder
    go = Go.found("1.24", f"{product.name} {version}")
    wanted = ("mod", "download", "-json", f"{product.path}@{version}")
    told = go.run(*wanted, cwd=FOLDER, deadline_s=DOWNLOAD_S, remedy=REMEDY)
    upstream = Path(json.loads(told)["GoMod"]).read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(description(product, version, upstream), encoding="utf-8")
    go.run("mod", "tidy", cwd=folder, deadline_s=DOWNLOAD_S, remedy=REMEDY)
    return folder


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case [name, version] if name in PRODUCTS and re.fullmatch(r"v?\d+\.\d+\.\d+", version):
            try:
                folder = pin(PRODUCTS[name], f"v{version.removeprefix('v')}")
            except LackingError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            sys.stdout.write(f"Written: {folder}\n")
            return 0
    sys.stderr.write(f"python -m tests.realnode.pin {'|'.join(PRODUCTS)} VERSION, as in: kubernetes 1.37.2\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
