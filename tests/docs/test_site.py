"""The site builds without a warning, has no broken links and loads nothing from the network."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from pages import PAGES, ROOT

LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "srcset"}


class Page(HTMLParser):
    """Collects the links, loaded resources and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in LOADING and attributes.get(LOADING[tag]):
            self.loaded.append(attributes[LOADING[tag]])


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Every page of the built site by its path, and the index that its search reads."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(out): Page(path.read_text("utf-8")) for path in out.rglob("*.html")}
    (index,) = re.fullmatch(
        r"Search\.setIndex\((.*)\)", (out / "searchindex.js").read_text("utf-8"), re.DOTALL
    ).groups()
    return SimpleNamespace(pages=pages, index=json.loads(index))


@pytest.mark.slow
def test_search_finds_pages_by_their_words(site):
    found = site.index["terms"]
    for word, page in {"cuda": "gpu", "cron": "daily", "postgresql": "production"}.items():
        places = found[word] if isinstance(found[word], list) else [found[word]]
        assert page in {site.index["docnames"][place] for place in places}
    assert "search.html" in map(str, site.pages)


@pytest.mark.slow
def test_internal_links_have_targets(site):
    broken = []
    for path, page in site.pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or (link.startswith("#") and not parts.fragment):
                continue
            target = path.parent / unquote(parts.path) if parts.path else path
            target = type(path)(re.sub(r"[^/]+/\.\./", "", target.as_posix()))
            if target.suffix != ".html":
                continue
            found = site.pages.get(target)
            if found is None or (parts.fragment and unquote(parts.fragment) not in found.anchors):
                broken.append(f"{path}: {link}")
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_nothing_is_loaded_from_the_network(site):
    for path, page in site.pages.items():
        remote = [source for source in page.loaded if urlsplit(source).netloc]
        assert not remote, f"{path}: {remote}"


@pytest.mark.slow
def test_every_page_is_in_the_site(site):
    for page in PAGES[1:]:
        built = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built in site.pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_external_links_are_well_formed(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)\)|<(https?:[^>\s]+)>", prose):
        address = "".join(link)
        parts = urlsplit(address)
        if parts.scheme:
            assert parts.scheme in {"http", "https", "mailto"}, address
            assert re.fullmatch(r"[\w.-]+\.[a-z]{2,}|127\.0\.0\.1(:\d+)?", parts.netloc), address
        else:
            assert (page.parent / address).exists(), f"{page.name} links to {address}"
