"""One target under atheris: ``python -m tests.fuzz.one TARGET [libFuzzer's options] FOLDER...``."""

import sys

import atheris
import structlog


def main() -> None:
    name, *options = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    atheris.enabled_hooks.add("RegEx")
    with atheris.instrument_imports(include=["cdi", "hami_plugin", "vendors", "tests.fuzz.targets"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415  # instrumented while it is imported

        feed = TARGETS[name]
        feed(b"\0")  # what is imported late is instrumented too
    atheris.Setup([sys.argv[0], *options], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
