"""``hami-plugin values``: HAMi's chart values as values of this chart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import yaml

from hami_plugin.config.documents import MAX_BYTES, parse_yaml, read_yaml, section
from hami_plugin.config.explain import shown
from hami_plugin.config.hami_values import Converted, ConvertedValue, ValueOutcome, Vendors, convert
from hami_plugin.errors import ConfigError
from hami_plugin.sdk import load_vendor, vendor_names

STDIN = Path("-")
PROBLEM = 1


@click.group()
def values() -> None:
    """Helm values: convert those of HAMi's chart."""


@values.command(
    "convert",
    short_help="Print this chart's values for HAMi's.",
    epilog="Example: helm get values hami -n kube-system -o yaml | hami-plugin values convert - > values.yaml. "
    "Exit statuses: 0 every key is taken over or explained, 1 some are refused or unknown and left out, 2 the file "
    "cannot be read.",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default="-")
@click.option("--json", "as_json", is_flag=True, help="Print the values and the outcome of each key as JSON.")
@click.option("--quiet", is_flag=True, help="Print only the outcomes that need a decision: refused and unknown.")
def convert_values(file: Path, as_json: bool, quiet: bool) -> None:
    """Print the values of this chart that mean what FILE means to HAMi's chart, v2.4 to v2.10.

    FILE holds what you set for HAMi; `-` is standard input. Standard output has the values, standard error the outcome
    of each key: what it becomes, why it has no meaning here, or why it is refused and what to do instead. What is
    refused is left out, so the daemon and the scheduler accept the rest. Values of this chart pass unchanged.
    """
    document = parse_yaml(_stdin(), Path("standard input")) if file == STDIN else read_yaml(file)
    result = convert(section(document, (), document.value), vendors())
    if as_json:
        click.echo(json.dumps(_facts(result), indent=1))
    else:
        click.echo(_text(result), nl=False)
        for line in _lines(result, quiet=quiet):
            click.echo(line, err=True)
    if not result.complete:
        sys.exit(PROBLEM)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(result: Converted) -> str:
    return yaml.dump(result.values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _stdin() -> str:
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"standard input: has more than {MAX_BYTES // 1024} KiB; values of a chart are shorter"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"standard input: byte {error.start} is not UTF-8 text; save the file as UTF-8"]) from error


def vendors() -> Vendors:
    """What the conversion knows of all vendors."""
    names = vendor_names()
    known = [load_vendor(name) for name in names]
    families = [family for vendor in known for family in vendor.families(vendor.settings())]
    resources = frozenset(name for family in families for name in family.resources.names.values() if name)
    return Vendors(names=names, settings=lambda name: load_vendor(name).settings, resources=resources)


def _lines(result: Converted, *, quiet: bool) -> list[str]:
    counts = {outcome: sum(one.outcome is outcome for one in result.findings) for outcome in ValueOutcome}
    lines = [_line(one) for one in result.findings if one.outcome.fails or not quiet]
    lines += [f"warning: {note}" for note in result.notes]
    lines.append(f"{len(result.findings)} keys: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n))
    return lines


def _line(finding: ConvertedValue) -> str:
    to = ", ".join(f"{path}={shown(value)}" for path, value in finding.to.items())
    match finding.outcome:
        case ValueOutcome.BECOMES:
            text = to + (f" ({finding.text})" if finding.text else "")
        case ValueOutcome.SAME:
            text = "a value of this chart, too"
        case ValueOutcome.DEFAULT:
            text = "as it is here by default" + (f" ({finding.text})" if finding.text else "")
        case ValueOutcome.UNKNOWN:
            text = f"is no value of HAMi's chart nor of ours; {finding.text}"
        case _:
            text = finding.text
    return f"{finding.outcome:<8} {finding.key}: {text}"


def _facts(result: Converted) -> dict[str, object]:
    keys = [{"key": f.key, "outcome": str(f.outcome), "to": dict(f.to), "text": f.text} for f in result.findings]
    return {"values": result.values, "keys": keys, "warnings": list(result.notes)}
