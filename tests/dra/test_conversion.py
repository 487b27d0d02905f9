"""From a pod with a vendor's limits to one with a claim: what is asked for, and what is refused."""

import json

import pytest

from hami_plugin.dra.conversion import CLAIMED, ClaimVendor, ConvertedPod, convert, quota_excess, read_claimed
from hami_plugin.model.views import pod_view
from hami_plugin.scheduler.engine.admission import Views, admit_document
from hami_plugin.scheduler.engine.devices import Denied
from hami_plugin.sdk import load_vendor, vendor_names

TYPE = 'device.attributes["nvidia.hami.io"].type == "NVIDIA"'


def vendor(name, **settings):
    found = load_vendor(name)
    section = found.settings.model_validate({"deviceListStrategy": ["cdi-cri"], "frontEnd": "dra", **settings})
    return ClaimVendor(name=name, families=tuple(found.families(section)))


NVIDIA = vendor("nvidia")


def pod(*containers, init=(), **annotations):
    """Containers are their limits."""

    def made(prefix, limits):
        return [{"name": f"{prefix}{n}", "resources": {"limits": dict(one)}} for n, one in enumerate(limits)]

    spec = {"containers": made("c", containers)}
    if init:
        spec["initContainers"] = made("i", init)
    return {"metadata": {"name": "p", "namespace": "team", "annotations": annotations}, "spec": spec}


def gpus(count=1, **amounts):
    return {"nvidia.com/gpu": str(count), **{f"nvidia.com/{name}": str(amount) for name, amount in amounts.items()}}


def converted(asked, *vendors):
    vendors = vendors or (NVIDIA,)
    there = admit_document(asked, [family for one in vendors for family in one.families])
    return convert(there, Views(asked=pod_view(asked), filled=pod_view(there)), vendors, "token")


def requests(found):
    (template,) = found.templates
    return {one["name"]: one["exactly"] for one in template.spec["devices"]["requests"]}


def test_amounts_become_a_request_of_the_vendors_class_and_the_limits_go():
    asked = pod({**gpus(2, gpumem=3000, gpucores=30), "memory": "1Gi"})

    found = converted(asked)

    assert isinstance(found, ConvertedPod)
    assert requests(found) == {
        "devices-0": {
            "deviceClassName": "nvidia.hami.io",
            "allocationMode": "ExactCount",
            "count": 2,
            "selectors": [{"cel": {"expression": TYPE}}],
            "capacity": {"requests": {"memory": "3000Mi", "cores": "30"}},
        }
    }
    (container,) = found.stored["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"memory": "1Gi"},
        "claims": [{"name": "hami-nvidia", "request": "devices-0"}],
    }
    assert found.stored["spec"]["resourceClaims"] == [
        {"name": "hami-nvidia", "resourceClaimTemplateName": found.templates[0].name}
    ]
    claimed = read_claimed(found.stored["metadata"]["annotations"][CLAIMED])
    assert claimed == found.claimed
    assert claimed.amounts == {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 6000, "nvidia.com/gpucores": 60}
    assert not found.view.containers[0].limits.keys() & NVIDIA.resources


def test_a_whole_card_has_all_cores_and_says_no_memory():
    (only,) = requests(converted(pod(gpus()))).values()

    assert only["capacity"] == {"requests": {"cores": "100"}}


def test_pods_of_one_shape_share_a_template_whatever_their_names_and_others_do_not():
    names = [converted(pod(gpus(gpumem=memory))).templates[0].name for memory in (3000, 3000, 3001)]

    assert names[0] == names[1] != names[2]
    assert names[0].startswith("hami-nvidia-")


def test_each_container_has_its_own_request_and_an_init_container_that_of_its_like():
    found = converted(pod(gpus(gpumem=1000), {}, gpus(gpumem=2000), init=[gpus(gpumem=2000), gpus(gpumem=500)]))

    listed = [
        [one["request"] for one in container["resources"].get("claims", ())]
        for key in ("initContainers", "containers")
        for container in found.stored["spec"][key]
    ]
    assert listed == [["devices-1"], ["devices-2"], ["devices-0"], [], ["devices-1"]]
    memories = [one["capacity"]["requests"]["memory"] for one in requests(found).values()]
    assert memories == ["1000Mi", "2000Mi", "500Mi"]
    assert found.claimed.amounts["nvidia.com/gpumem"] == 3500


def test_annotations_that_choose_devices_become_selectors_whose_text_is_no_expression():
    chosen = {
        "nvidia.com/use-gputype": 'A100,H"100',
        "nvidia.com/nouse-gpuuuid": "GPU-1",
        "nvidia.com/numa-bind": "true",
    }

    found = converted(pod(gpus(2), **chosen))

    (only,) = requests(found).values()
    product = "device.attributes[\"nvidia.hami.io\"].?productName.orValue('').lowerAscii()"
    assert [one["cel"]["expression"] for one in only["selectors"]] == [
        TYPE,
        f'({product}.contains("a100") || {product}.contains("h\\"100"))',
        '!(device.attributes["nvidia.hami.io"].?uuid.orValue(\'\') in ["GPU-1"])',
    ]
    assert found.templates[0].spec["devices"]["constraints"] == [
        {"requests": ["devices-0"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    ]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (pod(gpus(**{"gpumem-percentage": 50})), "50 percent of a device's memory, and a claim says amounts only"),
        (pod(gpus(), **{"hami.io/gpu-scheduler-policy": "mutex"}), "mutex cannot be said in a claim"),
        (pod(gpus(), **{"nvidia.com/vgpu-mode": "mig"}), "annotation nvidia.com/vgpu-mode cannot be said in a claim"),
        (pod(gpus(33)), "at most 32 devices of 32 requests"),
        (
            pod(gpus(), **{"nvidia.com/use-gpuuuid": ",".join(f"GPU-{n:08}" for n in range(700))}),
            "name too many devices for a claim's selector",
        ),
    ],
    ids=["percent", "mutex", "mode", "many", "long"],
)
def test_what_a_claim_cannot_say_is_refused(asked, why):
    found = converted(asked)

    assert isinstance(found, Denied)
    assert why in found.why


def test_a_pod_that_asks_for_nothing_of_the_vendor_is_left_alone():
    assert converted(pod({"cpu": "1"})) is None


def test_the_name_of_a_claim_that_the_pod_has_already_is_refused():
    asked = pod(gpus())
    asked["spec"]["resourceClaims"] = [{"name": "hami-nvidia", "resourceClaimName": "mine"}]

    assert "which is taken" in converted(asked).why


def test_devices_that_claims_give_whole_are_asked_for_by_number_alone():
    ascend = vendor("ascend")
    whole = converted(pod({"huawei.com/Ascend910B3": "2"}), ascend)
    part = converted(pod({"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}), ascend)

    (only,) = requests(whole).values()
    assert (only["count"], only.get("capacity"), only["deviceClassName"]) == (2, None, "ascend.hami.io")
    assert "asks for huawei.com/Ascend910B3-memory, and claims give huawei.com/Ascend910B3 whole" in part.why


def test_every_vendors_whole_device_can_be_asked_for_or_is_refused_with_the_reason():
    told = {}
    for name in vendor_names():
        own = load_vendor(name)
        section = own.settings()
        section = section.model_copy(update={"front_end": "dra"}) if hasattr(section, "front_end") else section
        one = ClaimVendor(name=name, families=tuple(own.families(section)))
        found = convert_one(one)
        told[name] = "" if isinstance(found, ConvertedPod) else getattr(found, "why", "nothing is asked")
    assert {name: why for name, why in told.items() if why} == {
        name: why for name, why in told.items() if "which a claim cannot say yet" in why
    }
    assert not told["nvidia"]
    assert not told["amd"]


def convert_one(one):
    asked = pod({one.families[0].resources.count: "1"})
    there = admit_document(asked, one.families)
    if isinstance(there, Denied):
        return there
    return convert(there, Views(asked=pod_view(asked), filled=pod_view(there)), (one,), "token")


def test_quotas_of_devices_memory_and_cores_count_what_others_have():
    found = converted(pod(gpus(2, gpumem=3000, gpucores=30))).claimed

    def told(hard, **used):
        return quota_excess(found, [NVIDIA], [hard], {f"nvidia.com/{name}": n for name, n in used.items()})

    assert told({"limits.nvidia.com/gpumem": "6000", "requests.nvidia.com/gpu": "2", "pods": "1"}) == ""
    assert "the pod needs 6000, and 1 of 6000 are used" in told({"limits.nvidia.com/gpumem": "6000"}, gpumem=1)
    assert "the pod needs 2, and 1 of 2 are used" in told({"requests.nvidia.com/gpu": "2"}, gpu=1)
    assert "the pod needs 60, and 50 of 100 are used" in told({"limits.nvidia.com/gpucores": "100"}, gpucores=50)


def test_where_memory_is_limited_a_pod_has_to_say_how_much():
    found = converted(pod(gpus())).claimed

    why = quota_excess(found, [NVIDIA], [{"limits.nvidia.com/gpumem": "100000"}], {})

    assert "say how much each container needs of nvidia.com/gpumem" in why


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"amounts": 1, "templates": []}', "[" * 4000, "1" * 5000])
def test_an_annotation_that_nobody_here_wrote_counts_for_nothing(text):
    assert read_claimed(text) is None


def test_amounts_that_are_no_numbers_are_left_out():
    text = json.dumps({"amounts": {"a": -1, "b": "2", "c": True, "d": 3}, "templates": ["t", 1], "id": 5})

    found = read_claimed(text)

    assert (found.amounts, found.templates) == ({"d": 3}, ("t",))
