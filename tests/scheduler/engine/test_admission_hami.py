"""HAMi's own cases of its webhook: which pods are taken, with what changes, and why others are not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hami_plugin.scheduler.engine.admission import Scheduling, review
from hami_plugin.scheduler.extender.payloads import admission_response
from tests.support.hami import Json, asks
from tests.support.pods import nvidia


def names(case: Json) -> str:
    """HAMi's unit tests configure other resource names than its defaults, with which the recorder asked."""
    return "hami.io" if case["origin"] == "unit-test" else "nvidia.com"


@pytest.mark.difference("D-320")
@asks("webhook", "webhook.Handle")
def test_a_pod_is_taken_changed_or_refused_as_by_hami(case: Json):
    context, expected = case["context"], case["expected"]
    scheduling = Scheduling(
        name=context.get("SchedulerName", ""), replaces_default=context.get("ForceOverwriteDefaultScheduler", False)
    )

    response = admission_response("1", review(case["input"]["pod"], nvidia(names(case)), scheduling))

    assert response["allowed"] == expected["allowed"]
    assert changes(response) == expected["patches"]
    status = response.get("status", {})
    if expected["code"] == 500:
        assert status["code"] == 403
        assert "nvidia.com/gpumem-percentage=150 is not within 0 to 100" in status["message"]
    else:
        assert status.get("code") == expected["code"]
        assert status.get("message", "").split(": ")[0] == (expected["message"] or "")


def changes(response: Json) -> Any:
    operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return [{"operation": one.pop("op"), **one} for one in operations]
