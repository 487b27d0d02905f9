"""What is different in shares of MetaX GPUs: link zones, tenants of one quality of service, online and offline pods."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import (
    Admitted,
    Context,
    Demand,
    Denied,
    DeviceState,
    Given,
    Invalid,
    Tenant,
    idle_state,
)
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.policy import Decision, Ranking
from vendors.metax.rules import families, qos_fits
from vendors.metax.settings import MetaxSettings

DECIDED_AT = 1_700_000_000_000_000_001
_, SGPU = families(MetaxSettings(), clock=lambda: DECIDED_AT)
QOS = "metax-tech.com/sgpu-qos-policy"
CLASS = "metax-tech.com/sgpu-app-class"
AWARE = "metax-tech.com/sgpu-topology-aware"


def pod(**annotations: str) -> PodView:
    named = {f"metax-tech.com/sgpu-{key.replace('_', '-')}": text for key, text in annotations.items()}
    return PodView(uid="u", namespace="n", name="p", annotations=named)


def cards(*zones: int, qos: str = "") -> list[DeviceState]:
    """Idle cards G0, G1, … in these link zones."""
    devices = [
        {
            "uuid": f"G{number}",
            "totalDevCount": 16,
            "totalCompute": 100,
            "totalVRam": 65536,
            "healthy": True,
            "linkZone": zone,
            "qosPolicy": qos,
        }
        for number, zone in enumerate(zones)
    ]
    node = NodeView(name="n", annotations={"metax-tech.com/node-gpu-devices": json.dumps(devices)})
    return [idle_state(info) for info in SGPU.rules.node_devices(node)]


def used(state: DeviceState, *classes: str, cores: int = 10) -> DeviceState:
    """With one tenant for each of the classes; an empty class is a normal pod."""
    tenants = tuple(Tenant(annotations={CLASS: name} if name else {}) for name in classes)
    return replace(state, slots=len(classes), cores=cores * len(classes), tenants=tenants)


def asked(count: int = 1, cores: int = 100, memory: int | None = None) -> Demand:
    return Demand(device_type="Metax-SGPU", count=count, memory=memory, percent=None if memory else 100, cores=cores)


def outcome(states: list[DeviceState], demand: Demand, who: PodView, given: Given | None = None) -> Granted | Refused:
    assert SGPU.rules.policy
    return fit(SGPU.rules.policy, states, Context(demand=demand, pod=who, given=given or {}))


def names(answer: Granted | Refused) -> list[str]:
    assert isinstance(answer, Granted), str(answer)
    return [grant.uuid for grant in answer.grants]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(1, ["G5"], id="from-the-smallest-zone"),
        pytest.param(2, ["G5", "G4"], id="the-smallest-zone-with-enough"),
        pytest.param(3, ["G3", "G2", "G1"], id="within-the-larger-zone"),
        pytest.param(5, ["G5", "G4", "G3", "G2", "G1"], id="across-zones"),
        pytest.param(7, ["G5", "G4", "G3", "G2", "G1", "G0", "G7"], id="then-those-without-a-zone"),
    ],
)
def test_whole_cards_come_from_one_zone_then_across_then_the_rest(count: int, expected: list[str]) -> None:
    assert names(outcome(cards(1, 1, 1, 1, 2, 2, 0, 0), asked(count), pod())) == expected


def test_of_equal_zones_the_first_in_device_order_is_taken() -> None:
    assert names(outcome(cards(2, 2, 1, 1), asked(2), pod())) == ["G3", "G2"]


def test_shares_are_the_first_that_fit_whatever_their_zones() -> None:
    assert names(outcome(cards(1, 1, 2, 0), asked(2, cores=50, memory=1024), pod())) == ["G3", "G2"]


def test_more_cores_than_a_card_has_do_not_fit() -> None:
    assert str(outcome(cards(1), asked(cores=120), pod())) == "1/1 CardInsufficientCore"


def scored(count: int, order: str = "binpack", **annotations: str) -> object:
    """The node's worth when ``count`` cards of two zones of four are granted."""
    states = cards(1, 1, 1, 1, 2, 2, 2, 2)
    answer = outcome(states, asked(count), pod(**annotations))
    assert isinstance(answer, Granted)
    assert SGPU.rules.policy
    decision = Decision(
        node=NodeView(name="n"), pod=pod(**annotations), pieces=[answer.grants], before=states, order=order
    )
    return SGPU.rules.policy.score(decision)


def test_the_nodes_formula_is_ten_times_the_grants_links_less_those_that_are_cut() -> None:
    assert scored(1, topology_aware="true") == Ranking(value=-30)
    assert scored(2, topology_aware="true") == Ranking(value=10 * 10 - (120 - 10 - 70))
    assert scored(4, topology_aware="true") == Ranking(value=600)
    assert scored(2, "spread", topology_aware="true") == scored(2, topology_aware="true")


def test_links_count_between_nodes_only_if_the_pod_or_the_configuration_says_so() -> None:
    (_, always) = families(MetaxSettings.model_validate({"sgpuTopologyAware": True}))
    states = cards(1, 1, 1)
    grants = outcome(states, asked(2), pod())
    assert isinstance(grants, Granted)
    assert always.rules.policy

    def worth(who: PodView) -> object:
        assert always.rules.policy
        return always.rules.policy.score(
            Decision(node=NodeView(name="n"), pod=who, pieces=[grants.grants], before=states)
        )

    assert scored(2) == scored(2, topology_aware="maybe") == Ranking(value=0)
    assert worth(pod()) == worth(pod(topology_aware="maybe")) == Ranking(value=80)
    assert worth(pod(topology_aware="false")) == Ranking(value=0)


def test_a_card_in_use_takes_only_tenants_of_its_quality_of_service() -> None:
    card = used(cards(0, qos="fixed-share")[0], "")
    share = asked(cores=10, memory=1024)

    assert names(outcome([card], share, pod(qos_policy="fixed-share"))) == ["G0"]
    assert str(outcome([card], share, pod(qos_policy="burst-share"))) == "1/1 CardQosPolicyMismatch"
    assert names(outcome([replace(card, slots=0)], share, pod(qos_policy="burst-share"))) == ["G0"]
    newer = replace(card, tenants=(Tenant(annotations={"metax-tech.com/sgpu-qos-policy": "burst-share"}),))
    assert names(outcome([newer], share, pod(qos_policy="burst-share"))) == ["G0"]


def test_a_tenant_gives_the_card_its_quality_of_service_and_a_whole_card_has_none() -> None:
    assert SGPU.rules.policy
    states = cards(0, qos="best-effort")
    for cores, qos in ((10, "burst-share"), (100, "")):
        answer = outcome(states, asked(cores=cores), pod(qos_policy="burst-share"))
        assert isinstance(answer, Granted)
        booked = SGPU.rules.policy.book(states[0], answer.grants[0], pod(qos_policy="burst-share"))
        assert isinstance(booked, tuple)
        assert booked[0].notes["QosPolicy"] == qos


@pytest.mark.parametrize(
    ("tenants", "normal", "offline", "online"),
    [
        ((), True, True, True),
        (("",), True, False, False),
        (("offline",), False, True, True),
        (("online",), False, False, True),
        (("online", "offline"), False, False, True),
    ],
)
def test_online_pods_join_offline_ones_but_never_the_other_way_round(
    tenants: tuple[str, ...], normal: bool, offline: bool, online: bool
) -> None:
    card = used(cards(0)[0], *tenants)
    answers = [
        outcome([card], asked(cores=10, memory=1024), who)
        for who in (pod(), pod(app_class="offline"), pod(app_class="online"))
    ]

    assert [isinstance(answer, Granted) for answer in answers] == [normal, offline, online]


def test_an_online_pod_needs_no_free_cores_and_disturbs_the_fewest() -> None:
    offline, both, full = (
        used(state, *classes, cores=50)
        for state, classes in zip(
            cards(0, 0, 0),
            [("offline", "offline"), ("online", "offline"), ("online", "offline", "offline")],
            strict=True,
        )
    )
    answer = outcome([offline, both, full], asked(memory=1024), pod(app_class="online"))

    assert names(answer) == ["G1"]
    assert isinstance(answer, Granted)
    assert answer.grants[0].cores == 0
    assert SGPU.rules.policy
    decision = Decision(
        node=NodeView(name="n"), pod=pod(app_class="online"), pieces=[answer.grants], before=[offline, both, full]
    )
    assert SGPU.rules.policy.score(decision) == Ranking(value=-22)


def test_two_containers_of_an_online_pod_may_share_a_card() -> None:
    online = pod(app_class="online")
    first = outcome(cards(0), asked(memory=4096), online)
    assert isinstance(first, Granted)
    after = replace(cards(0)[0], slots=1, memory=4096)

    assert names(outcome([after], asked(memory=4096), online, {"Metax-SGPU": (first.grants,)})) == ["G0"]


def test_an_unhealthy_card_is_told_in_metaxs_word() -> None:
    (card,) = cards(0)

    assert str(outcome([replace(card, info=replace(card.info, health=False))], asked(), pod())) == "1/1 CardUnhealthy"


def request(**limits: str) -> object:
    assert SGPU.rules.policy
    named = {f"metax-tech.com/{key}": text for key, text in limits.items()}
    return SGPU.rules.policy.request(ContainerView(name="c", limits=named, requests={"metax-tech.com/vcore": "7"}))


@pytest.mark.parametrize(
    ("text", "mib"),
    [("4", 4096), ("4Gi", 4096), ("4G", 3814), ("512Mi", 512), ("1.5Gi", 1536), ("3Ti", 3145728), ("2G", 1907)],
)
def test_memory_is_gib_unless_it_has_a_suffix(text: str, mib: int) -> None:
    assert request(sgpu="1", vmemory=text) == asked(memory=mib)
    assert request(sgpu="1", vcore="60", vmemory=text) == asked(cores=60, memory=mib)


def test_a_request_without_memory_and_cores_is_for_whole_cards() -> None:
    assert request(sgpu="4") == request(sgpu="4", vmemory="0") == asked(4)


@pytest.mark.parametrize("text", ["1000", "1k", "512Ki", "500m", "1.5", "-4", "2097152", "100Pi"])
def test_memory_that_means_nothing_is_refused_and_never_a_whole_card(text: str) -> None:
    answer = request(sgpu="1", vmemory=text)

    assert isinstance(answer, Invalid)
    assert answer.text == text


def test_cores_that_are_no_whole_number_are_refused() -> None:
    assert isinstance(request(sgpu="1", vcore="500m"), Invalid)


def admitted(who: PodView, count: str = "1") -> Admitted | Denied:
    return SGPU.rules.admit(ContainerView(name="c", limits={"metax-tech.com/sgpu": count}), who)


def test_every_pod_but_an_online_one_has_a_quality_of_service() -> None:
    assert admitted(pod()) == Admitted(found=True, pod_annotations={QOS: "best-effort"})
    for qos in ("best-effort", "fixed-share", "burst-share"):
        assert admitted(pod(qos_policy=qos)) == Admitted(found=True)
    assert admitted(pod(app_class="online")) == Admitted(found=True)


def test_a_wrong_word_or_an_app_class_for_several_cards_is_refused_with_the_remedy() -> None:
    assert admitted(pod(qos_policy="gold")) == Denied(
        why=f"{QOS}=gold is none of best-effort, fixed-share, burst-share"
    )
    assert admitted(pod(app_class="batch")) == Denied(why=f"{CLASS}=batch is neither online nor offline")
    assert admitted(pod(app_class="offline"), "2") == Denied(
        why=f"{CLASS}=offline is for one card: set metax-tech.com/sgpu to 1"
    )


def test_metaxs_agent_reads_the_decision_beside_hamis_annotations() -> None:
    answer = outcome(cards(0), asked(cores=60, memory=4096), pod())
    assert isinstance(answer, Granted)

    patch = SGPU.rules.patch(SGPU, pod(), {"Metax-SGPU": ((), answer.grants)})

    assert patch == {
        "metax-tech.com/predicate-time": str(DECIDED_AT),
        "hami.io/metax-sgpu-devices-to-allocate": ";G0,Metax-SGPU,4096,60:;",
        "hami.io/metax-sgpu-devices-allocated": ";G0,Metax-SGPU,4096,60:;",
        "metax-tech.com/gpu-devices-allocated": '[[],[{"uuid":"G0","compute":60,"vRam":4096}]]',
    }


def test_a_damaged_node_annotation_names_the_device_and_the_field() -> None:
    text = json.dumps([{"uuid": "G0"}, {"uuid": "G1", "linkZone": "one"}])

    with pytest.raises(WireError, match=r"node-gpu-devices\[1\]\.linkZone: 'one' is not a whole number"):
        SGPU.rules.node_devices(NodeView(name="n", annotations={"metax-tech.com/node-gpu-devices": text}))


def held(state: DeviceState, qos: str | None, *, cores: int = 10, app: str = "") -> DeviceState:
    """With one more pod that has a share of the card, as its annotations tell a scheduler that has just started."""
    assert SGPU.rules.policy
    grant = Grant(uuid=state.uuid, device_type="Metax-SGPU", memory=1024, cores=cores)
    told = {"metax-tech.com/sgpu-qos-policy": qos, CLASS: app or None}
    who = PodView(
        uid="t", namespace="n", name="t", annotations={key: text for key, text in told.items() if text is not None}
    )
    return SGPU.rules.policy.restore(state, grant, who)


@pytest.mark.parametrize(
    ("tenants", "joins", "why"),
    [
        pytest.param([{"qos": "fixed-share"}], "fixed-share", "", id="its-like"),
        pytest.param([{"qos": "fixed-share"}], "burst-share", "(fixed-share)", id="another"),
        pytest.param([{"qos": None}], "fixed-share", "(best-effort)", id="none-is-the-default"),
        pytest.param([{"qos": None}], "best-effort", "", id="the-default"),
        pytest.param(
            [{"qos": "fixed-share"}, {"qos": "burst-share"}], "burst-share", "(burst-share+fixed-share)", id="mixed"
        ),
        pytest.param([{"qos": "fixed-share", "app": "online"}], "burst-share", "", id="online-has-none"),
        pytest.param([{"qos": "own words"}], "burst-share", "(unknown)", id="words-of-somebodys-own"),
    ],
)
def test_the_class_of_a_card_is_that_of_the_pods_that_have_it(
    tenants: list[dict[str, str | None]], joins: str, why: str
) -> None:
    assert SGPU.rules.policy
    state = cards(0)[0]
    for one in tenants:
        state = held(state, **one)
    context = Context(demand=asked(cores=10, memory=1024), pod=pod(qos_policy=joins))

    reason = qos_fits(state, context)

    assert (reason is None) == (why == "")
    if reason:
        assert f"({SGPU.rules.policy.detail(state, reason)})" == why


def test_what_the_pods_have_outranks_what_the_node_says_of_its_card() -> None:
    state = held(cards(0, qos="fixed-share")[0], "burst-share")
    share = asked(cores=10, memory=1024)

    assert names(outcome([state], share, pod(qos_policy="burst-share"))) == ["G0"]
    assert str(outcome([state], share, pod(qos_policy="fixed-share"))) == "1/1 CardQosPolicyMismatch"
