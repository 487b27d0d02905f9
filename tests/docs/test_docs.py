"""The documentation against the code: what it names exists, and what must be documented is."""

import inspect
import re
from dataclasses import asdict
from pathlib import Path

import click
import pytest

from hami_plugin.cli import main
from hami_plugin.config.settings import Settings
from hami_plugin.errors import DriverReason, RefusalReason
from hami_plugin.host.runtimes import USUAL_FILES
from hami_plugin.inventory import cdi_specs
from hami_plugin.model.delivery import Way
from hami_plugin.protocol import keys
from hami_plugin.sdk import AnnotationKeys, load_vendor, vendor_names
from tests.realnode.modules import CONTAINERD
from tests.realnode.versions import known
from tests.support.pages import generated
from tests.support.settings_reference import reference
from vendors.nvidia.health import RECOVERY
from vendors.nvidia.xid import TABLE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in ("docs", "deploy") for page in (ROOT / folder).rglob("*.md"))])
PACKAGES = ("cdi", "hami_plugin", "vendors")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def words(page):
    """What stands in backquotes, and the lines of code blocks."""
    whole = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", whole, flags=re.DOTALL | re.MULTILINE)
    return [
        *(line for block in blocks for line in block.splitlines()),
        *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", whole, flags=re.DOTALL | re.MULTILINE)),
    ]


def anchors(page):
    """The anchors that a forge makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z0-9-]+):", text("Makefile"), flags=re.MULTILINE))
    named = {target for word in words(page) for target in re.findall(r"(?:^|\s)make ((?:[a-z0-9-]+ ?)+)", word)}

    assert {target for group in named for target in group.split()} <= targets


def inner_commands(command, rest):
    """The subcommands that are named first in ``rest``, or all of a group's; a plain command is its own."""
    if not isinstance(command, click.Group):
        return [command]
    names = rest[0].split("|") if rest and not rest[0].startswith("-") else list(command.commands)
    assert set(names) <= set(command.commands), f"{command.name} has no {names}"
    return [command.commands[name] for name in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_flag_that_is_named_exists(page):
    for word in words(page):
        for call in re.findall(r"hami-plugin ([a-z][^#;&|]*)", word):
            command, *rest = call.split()
            names = command.split("|")
            assert set(names) <= set(main.commands), word
            called = [inner for name in names for inner in inner_commands(main.commands[name], rest)]
            known = {option for one in called for p in one.params for option in p.opts}
            flags = {re.split(r"[=\]]", part.strip("[]"))[0] for part in rest if part.strip("[]").startswith("--")}
            assert flags <= known | {"--help"}, word
        if re.fullmatch(r"--[a-z-]+", word):
            commands = [inner for command in main.commands.values() for inner in inner_commands(command, ())]
            every = {option for command in (main, *commands) for p in command.params for option in p.opts}
            assert word in every, f"{word} is no flag of hami-plugin"


def test_the_page_of_commands_is_what_they_say_of_themselves():
    wanted = "\n" + "".join(section(command, name) for name, command in sorted(main.commands.items())) + "\n"

    assert wanted.count("## ") > 8
    assert generated("docs/reference/commands.md", "commands", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def section(command, name):
    """A command with its flags; of a group, each of its commands."""
    if isinstance(command, click.Group):
        return "".join(section(inner, f"{name} {own}") for own, inner in sorted(command.commands.items()))
    summary = (command.help or "").partition("\n\n")[0].replace("\n", " ").strip()
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    rows = [f"| {' '.join(f'`{o}`' for o in p.opts)} | {variables(p)} | {cell(p.help)} |\n" for p in options]
    table = "".join(["| flag | environment | meaning |\n|---|---|---|\n", *rows, "\n"]) if rows else ""
    return f"## hami-plugin {name}\n\n{summary}\n\n{table}"


def variables(option):
    names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return " ".join(f"`{name}`" for name in names)


def cell(text):
    return re.sub(r"\s+", " ", (text or "").replace("\b", "")).replace("|", "\\|").strip()


def test_every_annotation_key_is_in_the_protocol():
    page = text("docs/protocol.md") + text("docs/reference/families.md")
    constants = {v for n, v in vars(keys).items() if n.isupper() and isinstance(v, str) and "/" in v}
    families = [
        family for name in vendor_names() for family in load_vendor(name).families(load_vendor(name).settings())
    ]
    of_vendors = {
        value
        for family in families
        for name in AnnotationKeys.__dataclass_fields__
        for value in (getattr(family.rules.annotations, name), *family.rules.annotations.others)
        if isinstance(value, str) and value
    }

    assert constants
    assert {key for key in constants | of_vendors if f"`{key}`" not in page} == set()


def test_every_variable_that_a_container_can_get_is_in_the_protocol():
    page = text("docs/protocol.md")
    source = (ROOT / "vendors/nvidia/injection.py").read_text(encoding="utf-8")
    names = set(re.findall(r"\"((?:CUDA|NVIDIA|GPU|LIBCUDA)_[A-Z_]+)\"", source))

    assert len(names) > 8
    assert {name for name in names if name not in page} == set()


@pytest.mark.parametrize("reason", [*RefusalReason, *DriverReason], ids=str)
def test_every_reason_has_a_row_in_operations(reason):
    assert re.search(rf"^\| `{reason}` \| .+ \| .+ \|$", text("docs/operations.md"), flags=re.MULTILINE)


@pytest.mark.parametrize("reason", [cdi_specs.MISSING, cdi_specs.CONFLICT])
def test_every_reason_of_a_spec_is_in_operations_and_explained(reason):
    assert re.search(rf"^\| `{reason}` \| .+ \| .+ \|$", text("docs/operations.md"), flags=re.MULTILINE)
    assert re.search(rf"^### {reason}$", text("docs/cdi.md"), flags=re.MULTILINE)


def test_the_strategies_and_the_runtimes_files_are_on_the_page_of_cdi():
    page = text("docs/cdi.md")

    assert {way for way in Way if not re.search(rf"^\| `{way}` \|", page, flags=re.MULTILINE)} == set()
    assert {file for file in USUAL_FILES if f"`{file}`" not in page} == set()


def test_every_fault_that_a_look_at_a_card_can_find_is_in_operations():
    sources = [p.read_text(encoding="utf-8") for p in (*(ROOT / "vendors/nvidia").glob("*.py"), *NODE)]
    found = {reason for source in sources for reason in re.findall(r'reason="([A-Z]\w+)"', source)}
    page = text("docs/operations.md")

    assert RECOVERY
    assert len(found) > 8
    assert {reason for reason in found if f"`{reason}`" not in page} == set()


NODE = [ROOT / "hami_plugin/inventory/inventory.py"]


def test_the_xid_table_is_the_code_s():
    section = text("docs/operations.md").partition("### XIDs")[2].partition("\n`healthchecks")[0]
    listed = {}
    for action, numbers in re.findall(r"^\| (\w+)[^|]*\| ([^|]+) \|$", section, flags=re.MULTILINE):
        listed |= dict.fromkeys(map(int, re.findall(r"\d+", numbers)), "ignore" if action == "nothing" else action)

    assert listed == {number: xid.action.value for number, xid in TABLE.items()}


def test_the_event_reasons_of_the_node_are_in_operations():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "hami_plugin").rglob("*.py")]
    reasons = {r for source in sources for r in re.findall(r'events\.node\(\s*"([A-Z]\w+)"', source)}
    pages = text("docs/operations.md") + text("docs/protocol.md")

    assert reasons
    assert {reason for reason in reasons if f"`{reason}`" not in pages} == set()


def test_the_probes_of_the_daemon_are_in_operations():
    source = inspect.getsource(__import__("hami_plugin.telemetry.http", fromlist=["TelemetryServer"]))
    paths = set(re.findall(r'add_get\("(/\w[\w/]*)"', source))

    assert paths
    assert {path for path in paths if f"`{path}`" not in text("docs/operations.md")} == set()


def test_the_configuration_reference_is_the_settings_classes_own():
    models = {"The daemon's own file": Settings}
    models |= {f"vendors.{name}": load_vendor(name).settings for name in vendor_names()}
    wanted = f"\n{reference(models)}\n"

    assert generated("docs/reference/configuration.md", "settings", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def test_the_table_of_families_is_the_vendors_own():
    wanted = f"\n{families()}\n"

    assert generated("docs/reference/families.md", "families", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def families():
    """One row for each family: its word, resources, and annotations of nodes and pods."""
    vendors = [load_vendor(name) for name in vendor_names()]
    rows = [
        f"| `{one.resources.device_type}` | {listed(one.resources.names)} | {listed(asdict(one.rules.annotations))} |"
        for vendor in vendors
        for one in vendor.families(vendor.settings())
    ]
    return "\n".join(["| family | resources | annotations |", "|---|---|---|", *rows]) + "\n"


def listed(names):
    several = {name: value if isinstance(value, tuple) else (value,) for name, value in names.items()}
    return "<br>".join(
        f"{name.replace('_', ' ')} {', '.join(f'`{one}`' for one in values)}"
        for name, values in several.items()
        if any(values)
    )


def test_every_room_is_in_the_tree():
    tree = (ROOT / "docs/architecture.md").read_text().partition("## The tree\n\n```\n")[2].partition("```")[0]
    rooms = [path.parent.name for path in (ROOT / "hami_plugin").glob("*/__init__.py")]

    assert [room for room in rooms if f"  {room}/" not in tree] == []


def test_every_key_of_a_nodes_entry_is_in_operations():
    page = text("docs/operations.md")
    for name in vendor_names():
        for key, target in load_vendor(name).settings.node_config.items():
            assert key == target.lower()
            assert f"`{key}`" in page


def test_the_readme_starts_with_exactly_two_commands():
    start = text("README.md").partition("## Quick start")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```[a-z]*\n(.*?)^```", start, flags=re.DOTALL | re.MULTILINE)

    assert block.splitlines() == ["make demo", "make test"]


def test_the_decisions_are_numbered_without_a_gap_and_listed():
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    titles = {page.name: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages}
    wanted = "\n" + "".join(f"- [{title}](../decisions/{name})\n" for name, title in titles.items()) + "\n"

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert generated("docs/reference/decisions.md", "decisions", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("0*.md")), ids=lambda page: page.stem)
def test_a_decision_has_a_context_a_decision_and_a_consequence(page):
    assert re.findall(r"^\*\*(\w+)\.\*\*", page.read_text(encoding="utf-8"), flags=re.MULTILINE) == [
        "Context",
        "Decision",
        "Consequence",
    ]


def test_every_difference_has_an_id_of_its_own():
    ids = re.findall(r"^\| (D-\d{3}) \|", text("docs/differences.md"), flags=re.MULTILINE)

    assert len(ids) > 20
    assert ids == sorted(set(ids))


def test_each_cell_of_the_versions_that_go_together_is_seen_by_a_test_that_exists_or_said_to_be_unseen():
    section = text("docs/kubernetes.md").partition("\n## Which versions go together\n")[2].partition("\n## ")[0]
    words = set(re.findall(r"^- \*\*(.+?)\*\*:", section, flags=re.MULTILINE))
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]

    assert [name.rpartition(" ")[2] for name in head[3:]] == ["2.10", "2.9", "2.8", "2.7"]
    assert {cell.partition(",")[0] for row in rows for cell in row[2:]} == words
    assert {row[0] for row in rows if row[2] == "ran"} == {one.version[1:] for one in known().values()}
    assert {row[1] for row in rows if row[2] == "ran"} == {"containerd 1.7", f"containerd {CONTAINERD.minors()[-1]}"}
    named = re.findall(r"`(tests/\S+?)`", section)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_case_of_claims_names_tests_of_the_real_node_that_exist():
    section = text("docs/kubernetes.md").partition("\n## Claims, case by case\n")[2].partition("\n## ")[0]
    _head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    there = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/realnode").glob("test_claims*.py"))

    assert [row[0] for row in rows] == [str(number) for number in range(1, 21)]
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[2])
        assert named, row
        assert [name for name in named if f"\ndef {name}(" not in there] == []
        assert {*row[3:]} <= {"seen", "in part", "unseen", "no"}
