"""How a container asks for devices through annotations: ``cdi.k8s.io/<plugin>_<id>: name,name``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cdi.errors import InvalidNameError
from cdi.names import QualifiedName

PREFIX = "cdi.k8s.io/"
"""The default prefix of runtimes."""
MAX_NAME = 63
"""Characters after the prefix: the limit that Kubernetes sets for the name in an annotation's key."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)


def annotation_key(plugin: str, request: str, *, prefix: str = PREFIX) -> str:
    """The key for one request of ``plugin``. ``request`` tells it from the plugin's other requests; "/" becomes "_"."""
    if not plugin or not request:
        raise InvalidNameError(f'annotation key needs a plugin and a request, has "{plugin}" and "{request}"')
    name = f"{plugin}_{request.replace('/', '_')}"
    if len(name) > MAX_NAME:
        raise InvalidNameError(
            f'annotation name "{name}" has {len(name)} characters, {MAX_NAME} are allowed',
            hint="use a shorter plugin name or request",
        )
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f'annotation name "{name}" must be letters, digits, "_", "-" and ".", with a letter or digit at both ends'
        )
    return f"{prefix.removesuffix('/')}/{name}"


def annotation_value(names: Iterable[QualifiedName]) -> str:
    return ",".join(str(name) for name in names)


def annotated(annotations: Mapping[str, str], *, prefix: str = PREFIX) -> tuple[QualifiedName, ...]:
    """The devices that ``annotations`` ask for, by key, each once. Other annotations are ignored.

    ``InvalidNameError`` names the key of a value that is not a list of qualified names.
    """
    start = f"{prefix.removesuffix('/')}/"
    asked: dict[QualifiedName, None] = {}
    for key in sorted(key for key in annotations if key.startswith(start)):
        for text in annotations[key].split(","):
            try:
                asked[QualifiedName.parse(text)] = None
            except InvalidNameError as error:
                raise InvalidNameError(f"annotation {key}: {error.message}", hint=error.hint) from error
    return tuple(asked)
