"""The pages of a daemon's port, as commands ask for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import click

from hami_plugin.errors import HamiError

URL = "http://127.0.0.1:9394"
TIMEOUT_S = 5.0
MAX_BYTES = 32 << 20


def address(_context: click.Context, _parameter: click.Parameter, url: str) -> str:
    """A callback for an option with a daemon's address, which may be empty."""
    if url and urlsplit(url).scheme not in {"http", "https"}:
        raise click.BadParameter(f"{url!r} is not an address such as {URL}")
    return url


daemons_url = click.option(
    "--url",
    default=URL,
    show_default=True,
    callback=address,
    help="The daemon's port for probes and metrics, on this host, or by kubectl port-forward.",
)


def asked(url: str, name: str, *, of: str) -> Mapping[str, Any]:
    """The daemon's page ``/debug/<name>`` with a list ``of`` something. ``HamiError`` where there is none."""
    document = page(url, f"debug/{name}")
    if not isinstance(document.get(of), list):
        raise HamiError(f"{url.rstrip('/')}/debug/{name} is no list of {of}", hint="is this the daemon's httpPort?")
    return document


def page(url: str, name: str, *, timeout: float = TIMEOUT_S) -> Mapping[str, Any]:
    """A page of JSON, which may say that the daemon is not ready. ``HamiError`` where there is none."""
    try:
        document = json.loads(text(url, name, timeout=timeout))
    except ValueError as error:
        raise HamiError(
            f"{url.rstrip('/')}/{name} is no JSON: {error}", hint="is this the daemon's httpPort?"
        ) from error
    if not isinstance(document, dict):
        raise HamiError(f"{url.rstrip('/')}/{name} is no JSON object", hint="is this the daemon's httpPort?")
    return document


def text(url: str, name: str, *, timeout: float = TIMEOUT_S) -> bytes:
    """A page as it is, up to ``MAX_BYTES``. ``timeout`` in seconds is for each read."""
    where = f"{url.rstrip('/')}/{name}"
    try:
        with build_opener(ProxyHandler({})).open(where, timeout=timeout) as answer:
            return bytes(answer.read(MAX_BYTES))
    except HTTPError as error:
        with error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return bytes(error.read(MAX_BYTES))
        hint = "run it in the daemon's pod: kubectl exec" if error.code == 403 else "is this the daemon's httpPort?"
        raise HamiError(f"{where} answers {error.code} {error.reason}", hint=hint) from error
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise HamiError(
            f"no daemon answers at {url}: {why}", hint="set --url to its httpPort, on the node or by port-forward"
        ) from error
