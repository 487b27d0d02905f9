"""A spec names every device in each way a container may ask for it, and is compared with what a runtime finds."""

from __future__ import annotations

from cdi.documents import to_json
from cdi.names import Kind
from cdi.registry import SpecFile, registry
from cdi.spec import ContainerEdits, DeviceNode
from hami_plugin.inventory.cdi_specs import CONFLICT, MISSING, DescribedDevice, specification, unresolved_faults
from tests.support.builders import device, uuid

KIND = Kind(vendor="toy.io", cls="card")
OURS, THEIRS = "/var/run/cdi/ours.json", "/var/run/cdi/theirs.json"
SHARED = ContainerEdits(env={"TOY": "void"})


def edits(number):
    return ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/toy{number}"),))


def described(*numbers, **slices):
    return [
        DescribedDevice(device=device(n), edits=edits(n), slices=slices if n == numbers[0] else {}) for n in numbers
    ]


def spec(*numbers, shared=SHARED, **slices):
    return specification(KIND, described(*numbers, **slices), shared)


def found(**files):
    places = {"ours": (OURS, 1), "theirs": (THEIRS, 1), "lower": ("/etc/cdi/lower.json", 0)}
    return registry(
        SpecFile(path=places[name][0], priority=places[name][1], text=to_json(content))
        for name, content in files.items()
    )


def faults(wanted, *numbers, **files):
    return unresolved_faults(wanted, OURS, [device(n) for n in numbers], found(**files))


def test_a_device_has_its_uuid_and_its_index_as_names():
    assert [d.name for d in spec(0, 3).devices] == [uuid(0), "0", uuid(3), "3", "all"]


def test_all_is_every_device_once_and_no_part():
    everything = spec(0, 1, part=edits(9)).devices[-1]

    assert [node.path for node in everything.edits.device_nodes] == ["/dev/toy0", "/dev/toy1"]


def test_a_part_has_the_name_that_its_vendor_gives_it():
    assert "part" in [d.name for d in spec(0, part=edits(9)).devices]


def test_without_devices_there_is_no_all():
    assert spec().devices == ()


def test_what_is_on_the_disk_as_wanted_resolves():
    assert faults(spec(0, 1), 0, 1, ours=spec(0, 1)) == {}


def test_a_device_that_no_spec_defines_is_missing_and_the_others_are_not():
    answer = faults(spec(0, 1), 0, 1, ours=spec(0))

    assert answer[uuid(1)].reason == MISSING
    assert OURS in answer[uuid(1)].message
    assert uuid(0) not in answer


def test_a_stale_description_would_give_out_another_node_so_it_counts_as_missing():
    stale = specification(KIND, [DescribedDevice(device=device(0), edits=edits(7))], SHARED)

    assert faults(spec(0), 0, ours=stale)[uuid(0)].reason == MISSING


def test_other_shared_edits_are_stale_too():
    assert faults(spec(0), 0, ours=spec(0, shared=ContainerEdits(env={"TOY": "old"})))[uuid(0)].reason == MISSING


def test_a_second_file_of_the_same_directory_is_a_conflict_that_names_both():
    fault = faults(spec(0), 0, ours=spec(0), theirs=spec(0))[uuid(0)]

    assert fault.reason == CONFLICT
    assert OURS in fault.message
    assert THEIRS in fault.message


def test_a_second_file_that_a_runtime_would_pass_over_is_a_conflict_all_the_same():
    assert faults(spec(0), 0, ours=spec(0), lower=spec(0))[uuid(0)].reason == CONFLICT


def test_a_conflict_is_of_the_devices_that_both_define_only():
    assert set(faults(spec(0, 1), 0, 1, ours=spec(0, 1), theirs=spec(1))) >= {uuid(1)}
    assert uuid(0) not in faults(spec(0, 1), 0, 1, ours=spec(0, 1), theirs=specification(KIND, described(1), SHARED))


def test_a_broken_file_of_ours_says_what_is_wrong_with_it():
    broken = registry([SpecFile(path=OURS, priority=1, text="{")])

    fault = unresolved_faults(spec(0), OURS, [device(0)], broken)[uuid(0)]

    assert fault.reason == MISSING
    assert len(fault.message) > len(f"{OURS} does not define")
