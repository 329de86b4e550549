"""README.md is also the page of the package index, where relative links and pictures break."""

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
REPOSITORY = urlsplit(URLS["Repository"]).path
HIDDEN = re.compile(r"<!--.*?-->|^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def addresses(text):
    """(is a picture, address) of every link and picture, in Markdown or HTML, outside code."""
    prose = HIDDEN.sub("", text)
    marked = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)[^)]*\)", prose)
    tags = re.findall(r"<(img|a)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)", prose)
    references = re.findall(r"^\[[^\]]+\]:\s*(\S+)", prose, re.MULTILINE)
    return [
        *((bool(bang), to) for bang, to in marked),
        *((tag == "img", to) for tag, to in tags),
        *((False, to) for to in references),
    ]


def anchors(text):
    """Names that GitHub gives to the headings."""
    heads = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def fault(picture, address):
    """What is wrong with a link of README.md, or None."""
    parts = urlsplit(address)
    if not parts.scheme:
        if picture or not address.startswith("#"):
            return "is relative"
        return None if parts.fragment in anchors(readme()) else "names no heading"
    if parts.scheme != "https" and parts.hostname != "127.0.0.1":
        return "is not https"
    raw = parts.hostname == "raw.githubusercontent.com"
    if parts.hostname != urlsplit(URLS["Repository"]).hostname and not raw:
        return None
    head = f"{REPOSITORY}/main/" if raw else f"{REPOSITORY}/blob/main/"
    if not parts.path.startswith(head):
        return f"is not below {head}"
    if picture != raw:
        return "shows a page as a picture, or links to a raw file"
    file = ROOT / unquote(parts.path.removeprefix(head))
    if not file.is_file():
        return "names no file of the repository"
    if parts.fragment and parts.fragment not in anchors(file.read_text(encoding="utf-8")):
        return "names no heading"
    return None


def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_of_the_readme_work_on_a_package_index():
    found = addresses(readme())
    assert sum(picture for picture, _ in found) >= 1
    assert len(found) > 15
    faults = [f"{to} {why}" for picture, to in found if (why := fault(picture, to))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a](docs/data.md)", "relative"),
        ("![a](docs/pictures/balance.svg)", "relative"),
        ('<img src="docs/pictures/balance.svg">', "relative"),
        ("[a]: docs/data.md", "relative"),
        ("[a](#nowhere)", "heading"),
        ("[a](http://example.org/)", "https"),
        (f"[a]({URLS['Repository']}/blob/main/docs/nothing.md)", "no file"),
        (f"[a]({URLS['Repository']}/blob/main/docs/data.md#nowhere)", "heading"),
        (f"![a]({URLS['Repository']}/blob/main/docs/pictures/balance.svg)", "picture"),
    ],
)
def test_broken_links_are_found(text, why):
    ((picture, address),) = addresses(text)
    assert why in fault(picture, address)


@pytest.mark.parametrize("address", URLS.values())
def test_addresses_of_the_project_are_those_of_the_repository(address):
    assert address.startswith(URLS["Repository"])
