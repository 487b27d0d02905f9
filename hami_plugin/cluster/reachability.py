"""Whether the API server answers and lets us work, as one sentence."""

from __future__ import annotations

from http import HTTPStatus

from hami_plugin.aio import Watched
from hami_plugin.errors import ClusterError

from .replies import Call

FORBIDDEN = "APIForbidden"
NOT_YET = "the API server has not answered yet"


class Reachability:
    """Collects the outcome of each call. A missing permission stays until that very call succeeds."""

    def __init__(self) -> None:
        self.problem = Watched(NOT_YET)
        self._trouble = NOT_YET
        self._unauthorized = ""
        self._forbidden: dict[tuple[str, str], str] = {}

    def outdated(self, kind: str) -> str:
        """Why what is known of such objects may be old; empty while it is not."""
        forbidden = (self._forbidden.get((verb, kind), "") for verb in ("list", "watch"))
        return "; ".join(filter(None, (self._trouble, self._unauthorized, *forbidden)))

    def heard(self) -> None:
        """Bytes arrived on an open watch."""
        self._trouble = ""
        self._publish()

    def succeeded(self, call: Call) -> None:
        self._trouble = self._unauthorized = ""
        self._forbidden.pop((call.verb, call.kind), None)
        self._publish()

    def failed(self, call: Call, error: ClusterError) -> None:
        match error.status:
            case HTTPStatus.UNAUTHORIZED:
                self._trouble, self._unauthorized = "", f"{FORBIDDEN}: {error}"
            case HTTPStatus.FORBIDDEN:
                self._trouble = self._unauthorized = ""
                self._forbidden[call.verb, call.kind] = f"{FORBIDDEN}: {error}"
            case 0:
                self._trouble = f"unreachable: {error.message}"
            case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._trouble = f"failing: {error.message}"
            case _:
                self.succeeded(call)  # it answered, and knew us
        self._publish()

    def _publish(self) -> None:
        reasons = (self._trouble, self._unauthorized, *self._forbidden.values())
        self.problem.set("; ".join(reason for reason in reasons if reason))
