"""``rewire.__version__`` is the version; files that must repeat it, because they are read without Python, agree."""

import re
from pathlib import Path

import rewire

ROOT = Path(__file__).parents[1]


def test_the_citation_names_this_version():
    versions = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert versions == [rewire.__version__], "set `version:` in CITATION.cff to `__version__` of src/rewire/__init__.py"
