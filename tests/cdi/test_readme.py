"""Do the examples in the library's own documentation hold?"""

import doctest
import re
from pathlib import Path

import cdi

PAGE = Path(cdi.__file__).with_name("README.md")


def test_the_examples_print_what_the_page_says():
    page = PAGE.read_text(encoding="utf-8")
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    report = []
    runner = doctest.DocTestRunner(verbose=False)

    runner.run(doctest.DocTestParser().get_doctest(examples, {}, "README.md", str(PAGE), 0), out=report.append)

    assert report == []
    assert runner.tries > 20


def test_every_module_is_on_the_page():
    modules = {path.stem for path in PAGE.parent.glob("*.py")} - {"__init__", "blocks", "checks", "plain"}
    table = " ".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert set(re.findall(r"`(\w+)`", table)) == modules
