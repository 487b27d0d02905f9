"""The scheduler says yes exactly where the daemon's Allocate serves: random pods on every machine, in every way.

The default run asks a few pods of each. ``make agreement`` asks ``AGREEMENT_QUESTIONS`` of them in all.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agreement import Questions, Trial, ground
from tests.support.machines import LENT, Case, Way, cases
from tests.support.scale import spread

MORE = tuple(
    Case(profile=profile, way=Way(name=name, settings=settings))
    for profile, name, settings in (
        ("ascend-910b3-8", "cdi", {"deviceListStrategy": "cdi-annotations"}),
        ("cambricon-mlu590-8", "trusted", {"unlimitedShares": True}),
        ("iluvatar-biv150-8", "trusted", {"unlimitedShares": True}),
        ("kunlun-p800-8", "trusted-parts", {"serve": "parts", "unlimitedShares": True}),
        ("mthreads-s4000-8", "trusted", {"unlimitedShares": True}),
        ("enflame-s60-8", "auto", {}),
    )
)
UNWELL = tuple(
    Case(profile=profile, way=Way(name=f"unwell-{name}", settings=settings, faults=faults))
    for profile, name, settings, faults in (
        ("enflame-s60-8", "whole", {}, (("no-node", 3, 0), ("no-node", 7, 0))),
        ("enflame-s60-8-drs", "whole", {"serve": "whole"}, ()),
        ("cambricon-mlu590-8", "whole", {}, (("no-node", 7, 0),)),
        ("kunlun-p800-8", "whole", {}, (("no-node", 0, 0),)),
        ("mthreads-s4000-8", "whole", {}, (("no-node", 7, 0),)),
    )
)
"""With devices that are kept back, of families that register none."""
BARE = (
    Case(profile="mi300x-8", way=Way(name="without-limiter", bare=True)),
    Case(profile="hygon-k100ai-8", way=Way(name="without-vdcu", settings={"hygonPath": "/nonexistent/vdcu"})),
)
"""On hosts that lack what holds a container to a part of a device."""
CASES = (*cases(), *MORE, *UNWELL, *BARE)
QUESTIONS = int(os.environ.get("AGREEMENT_QUESTIONS", "0"))
EACH = -(-QUESTIONS // len(CASES)) if QUESTIONS else 8
PODS = 8
"""That are asked of one node before it is empty again."""
AGAINST = "against"


@pytest.fixture(scope="module")
def count(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Of all machines. In the full run the sums are printed at its end."""
    asked: Counter[str] = Counter()
    yield asked
    if QUESTIONS:
        told = ", ".join(f"{number} {answer}" for answer, number in sorted(asked.items()) if number)
        capture = request.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{asked['yes'] + asked['no']} questions: {told}; {asked[AGAINST]} disagreements")  # noqa: T201  # the answer of the full run


@pytest.mark.parametrize("case", spread(CASES, lambda case: case.machine.vendor, part=3), ids=str)
async def test_a_pod_fits_exactly_where_the_daemon_serves_it(case: Case, tmp_path: Path, count: Counter[str]) -> None:
    dice = random.Random(zlib.crc32(str(case).encode()) + int(os.environ.get("AGREEMENT_SEED", "0")))
    place = ground(case, tmp_path)
    questions, asked, against = Questions(place, dice), Counter[str](), list[str]()
    for number in range(0, EACH, PODS):
        trial = Trial(ground=place, root=tmp_path / f"node-{number}", dice=random.Random(dice.random()))
        for _ in range(min(PODS, EACH - number)):
            await trial.ask(questions.pod())
            if trial.pods and dice.random() < 0.5:
                await trial.start(dice.randrange(len(trial.pods)))
            if trial.pods and dice.random() < 0.3:
                await trial.end(dice.randrange(len(trial.pods)))
        await trial.close()
        asked, against = asked + trial.asked, against + trial.against

    count.update(asked)
    count[AGAINST] += len(against)
    assert against == []
    assert asked["yes"] + asked["no"] == EACH


async def test_what_a_container_has_by_two_resources_is_one_partition(tmp_path: Path) -> None:
    limits = {"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": "100", "enflame.com/gcu-count": "1"}
    main = {"name": "main", "image": "i", "resources": {"limits": limits}}
    trial = Trial(ground=ground(Case(profile="enflame-s60-8-drs", way=LENT), tmp_path), root=tmp_path / "node")

    fits = await trial.ask({"metadata": {"annotations": {}}, "spec": {"containers": [main]}})
    await trial.close()

    assert (fits, trial.against) == (True, [])
