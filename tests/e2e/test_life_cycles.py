"""Pods come and go at random, and each container gets what was decided for it, or nothing and a reason."""

import json
import time

import pytest

from hami_plugin.model.views import pod_view
from tests.e2e.lives import Lives
from tests.e2e.steps import WITHIN_S, sound
from tests.e2e.truth import journal
from tests.support.scale import sized

SEED = 20_260_801
COUNT = sized(100, 1000)


async def test_in_random_lives_no_container_gets_what_was_decided_for_another(running, tell):
    stage = await running(decisionWaitSeconds=0.3)
    lives = Lives(stage, seed=SEED, count=COUNT)

    began = time.monotonic()
    await lives.run()
    tell(f"{COUNT} lives in {time.monotonic() - began:.0f} s, seed {SEED}: {dict(lives.kinds)}")
    for outcome, times in lives.outcomes.most_common():
        tell(f"{times:5} {outcome}")

    assert lives.violations == []
    assert lives.unfair == []
    await sound(stage)
    await stage.until(lambda: not unexplained(stage, lives.refusals), "an Event or a line for each refusal", WITHIN_S)
    assert {held.uid for held in journal(stage)} <= {pod_view(pod).uid for pod in stage.api.pods()}


@pytest.mark.full
@pytest.mark.parametrize("check", ["hami", "exact"])
async def test_on_a_node_that_is_full_most_of_the_time_nobody_whom_the_scheduler_placed_lacks_room(
    running, tell, check
):
    stage = await running(decisionWaitSeconds=0.3, overcommitCheck=check)
    lives = Lives(stage, seed=SEED, count=COUNT // 4, shares=(20_000, 40_000, 60_000), crowded=True)

    await lives.run()
    tell(f"{lives.outcomes['not scheduled']} pods found no room, {lives.outcomes['served']} were served")

    assert lives.outcomes["not scheduled"] > COUNT // 10
    assert lives.outcomes["served"] > COUNT // 10
    assert [words for words in lives.refusals if "is to have" in words] == []
    assert (lives.violations, lives.unfair) == ([], [])


def unexplained(stage, refusals):
    """Refusals whose words stand in no Event and in no log line."""
    told = [event["message"] for event in stage.api.events()]
    told += [str(json.loads(line).get("why", "")) for line in stage.log_lines() if line.startswith("{")]
    return [words for words in refusals if not any(text and text in words for text in told)]
