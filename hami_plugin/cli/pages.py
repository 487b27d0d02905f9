"""The pages of a daemon's port, as commands ask for them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import click

from hami_plugin.errors import HamiError

URL = "http://127.0.0.1:9394"
TIMEOUT_S = 5.0
FORGET_S = RESIZE_S = 40.0
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


def debug_page(url: str, name: str, *, of: str) -> Mapping[str, Any]:
    """The daemon's page ``/debug/<name>`` with a list ``of`` something. ``HamiError`` where there is none."""
    document = page(url, f"debug/{name}")
    if not isinstance(document.get(of), list):
        raise HamiError(f"{url.rstrip('/')}/debug/{name} is no list of {of}", hint="is this the daemon's httpPort?")
    return document


def forget_claim(url: str, uid: str) -> Mapping[str, Any]:
    """Have the daemon release what is prepared for a claim: ``forgotten``, and ``why`` not."""
    where = f"{url.rstrip('/')}/debug/claims/{quote(uid, safe='')}"
    request = Request(where, method="DELETE", headers={"Hami-Plugin-Forget": "1"})  # noqa: S310  # checked by address
    try:
        document = json.loads(_read(request, where, FORGET_S, (HTTPStatus.CONFLICT, HTTPStatus.BAD_REQUEST)))
    except ValueError as error:
        raise HamiError(f"{where} is no JSON: {error}", hint="is this the daemon's httpPort?") from error
    if not isinstance(document, dict) or not isinstance(document.get("forgotten"), bool):
        raise HamiError(f"{where} does not say whether it was released", hint="is this the daemon's httpPort?")
    return document


def resize(url: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Have the daemon change what a container may use: ``resized``, ``why`` not, and what it has now."""
    where = f"{url.rstrip('/')}/debug/resize"
    headers = {"Hami-Plugin-Resize": "1", "Content-Type": "application/json"}
    request = Request(where, method="POST", data=json.dumps(document).encode(), headers=headers)  # noqa: S310  # as above
    try:
        document = json.loads(_read(request, where, RESIZE_S, (HTTPStatus.CONFLICT, HTTPStatus.BAD_REQUEST)))
    except ValueError as error:
        raise HamiError(f"{where} is no JSON: {error}", hint="is this the daemon's httpPort?") from error
    if not isinstance(document, dict) or not isinstance(document.get("resized"), bool):
        raise HamiError(f"{where} does not say whether it was resized", hint="is this the daemon's httpPort?")
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
    return _read(Request(where), where, timeout, (HTTPStatus.SERVICE_UNAVAILABLE,))  # noqa: S310  # checked by address


def _read(request: Request, where: str, timeout: float, also: Collection[int]) -> bytes:
    """The answer, of ``also`` these statuses besides 200."""
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=timeout) as answer:
            return bytes(answer.read(MAX_BYTES))
    except HTTPError as error:
        with error:
            if error.code in also:
                return bytes(error.read(MAX_BYTES))
        hint = "run it in the daemon's pod: kubectl exec" if error.code == 403 else "is this the daemon's httpPort?"
        raise HamiError(f"{where} answers {error.code} {error.reason}", hint=hint) from error
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise HamiError(
            f"no daemon answers at {'://'.join(urlsplit(where)[:2])}: {why}",
            hint="set --url to its httpPort, on the node or by port-forward",
        ) from error
