"""The page in a real browser: what users do with it, and what it must never do."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import KEYS
from .running import PATIENCE, RunningServer, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect
expect.set_options(timeout=1000 * PATIENCE)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with"),
]
HISTORY = "#history=i7,i10,i13"

# Contrast of every visible text with what is behind it, by the formula of WCAG 2.
CONTRAST = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const opacity = (e) => (e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1);
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim()) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest(".hidden-text, .skip, [disabled]")) continue;
    const back = behind(element), share = opacity(element);
    const own = parse(getComputedStyle(element).color);
    const front = own.map((v, i) => v * share + back[i] * (1 - share));
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([walker.currentNode.data.trim(), ratio.toFixed(2)]);
  }
  return bad;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Tab:
    """A page of its own, which records console messages, errors and requests."""

    def __init__(self, browser: Any, server: RunningServer, **options: Any) -> None:
        self.base = f"http://127.0.0.1:{server.port}"
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.context.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str = "") -> Any:
        self.page.goto(f"{self.base}/{address}")
        self.page.wait_for_selector("#lists .panel, #lists .tiles")
        return self.page


@pytest.fixture
def tab(browser: Any, server: RunningServer) -> Iterator[Tab]:
    """The page logs no errors and requests nothing but files of its own server."""
    made = Tab(browser, server, viewport={"width": 1400, "height": 900})
    yield made
    made.context.close()
    assert not made.complaints
    assert all(url.startswith(made.base) for url in made.requests)


def history(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        "#history li", "rows => rows.map(r => r.dataset.id)"
    )
    return found


def listed(page: Any, place: int = 0) -> list[str]:
    rows = page.locator("#lists ol.items").nth(place).locator("> li")
    found: list[str] = rows.evaluate_all("rows => rows.map(r => r.dataset.id)")
    return found


def test_choose_by_typing_and_see_recommendations(tab: Tab, server: RunningServer) -> None:
    page = tab.open()
    assert page.locator(".tiles li").count() == 24
    page.keyboard.press("/")
    page.keyboard.type("space film")
    expect(page.locator("#found [role=option]").first).to_contain_text("Space Film")
    page.keyboard.press("ArrowDown")
    active = page.get_attribute("#search", "aria-activedescendant")
    assert active == "found-1"
    expect(page.locator(f"#{active}")).to_have_attribute("aria-selected", "true")
    title = page.locator(f"#{active} .title").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#found")).to_be_hidden()  # it would cover the history
    assert page.locator("#history .title").inner_text() == title
    chosen = history(page)
    expect(page.locator("#lists ol.items")).to_have_count(2)
    asked = server.ask("/recommend", {"history": chosen}).json["items"]
    assert listed(page) == [item["id"] for item in asked]
    page.keyboard.press("Backspace")  # the field is empty: the newest is taken back
    expect(page.locator("#history li")).to_have_count(0)


def test_enter_means_what_was_typed_not_what_is_still_shown(tab: Tab) -> None:
    page = tab.open()
    page.focus("#search")
    expect(page.locator("#found [role=option]")).to_have_count(12)  # the most popular
    page.keyboard.type("schindlers")
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(1)
    assert history(page) == ["m4"]


def test_the_url_holds_the_whole_state(tab: Tab) -> None:
    page = tab.open()
    page.locator(".tiles button").first.click()
    expect(page.locator("#history li")).to_have_count(1)
    page.locator("#lists .add").nth(2).click()
    expect(page.locator("#history li")).to_have_count(2)
    page.select_option("#k", "10")
    page.click("text=By interest")
    expect(page.locator(".interests").first).to_be_visible()
    address, before, lists = page.url, history(page), listed(page)
    fresh = tab.context.new_page()  # the link in another tab
    fresh.goto(address)
    fresh.wait_for_selector(".interests")
    assert (history(fresh), listed(fresh)) == (before, lists)
    assert len(lists) == 10
    page.go_back()
    page.go_back()
    page.go_back()
    expect(page.locator("#history li")).to_have_count(1)


def test_an_id_with_a_comma_survives_the_url(tab: Tab) -> None:
    page = tab.open()
    page.fill("#search", "a,b/c?d=1&e")
    page.locator("#found [role=option]", has_text="Comma").click()
    expect(page.locator("#history li")).to_have_count(1)
    page.reload()
    expect(page.locator("#history .title")).to_have_text("Comma & Co.1999")


def test_titles_are_text_not_markup(tab: Tab) -> None:
    page = tab.open("#history=m2,<img src=x onerror=alert(1)>")
    expect(page.locator("#history")).to_contain_text('<script>alert("no")</script>')
    expect(page.locator(".message")).to_have_count(1)
    expect(page.locator(".message")).to_contain_text("Neither bundle holds <img src=x")
    assert page.evaluate(CONTRAST) == []


def test_interests_stand_side_by_side_with_their_names(tab: Tab, server: RunningServer) -> None:
    page = tab.open(f"{HISTORY}&view=interests")
    panels = page.locator(".interests").first.locator(".panel")
    assert panels.count() == 3
    tops = panels.evaluate_all("all => all.map(p => p.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    asked = server.ask("/recommend", {"history": ["i7", "i10", "i13"], "explain": True}).json
    names = panels.locator("h3").evaluate_all("all => all.map(h => h.childNodes[1].data)")
    assert sorted(names) == ["Interest 1", "Interest 2", "Interest 3"]
    shares = []
    for place, name in enumerate(names):
        interest = asked["interests"][int(name.split()[1]) - 1]
        assert listed(page, place) == [item["id"] for item in interest["items"]]
        shares.append([item["interest"] for item in asked["items"]].count(interest["interest"]))
    assert shares == sorted(shares, reverse=True)
    expect(panels.first.locator(".near")).to_contain_text("Film")
    page.keyboard.press("v")
    expect(page.locator(".interests")).to_have_count(0)


def test_a_reason_lights_up_its_item_of_the_history(tab: Tab, server: RunningServer) -> None:
    page = tab.open(HISTORY)
    asked = server.ask("/recommend", {"history": ["i7", "i10", "i13"], "explain": True}).json
    page.locator("#lists ol.items > li").nth(3).hover()
    lit = page.locator("#history li.lit")
    assert lit.get_attribute("data-id") == asked["items"][3]["because"]["id"]
    page.locator("#history li").first.hover()
    because = [item["because"]["id"] for item in asked["items"]].count(history(page)[0])
    first = page.locator("#lists ol.items").first
    expect(first.locator("> li.lit")).to_have_count(because)


def test_two_bundles_side_by_side(tab: Tab, server: RunningServer) -> None:
    page = tab.open(HISTORY)
    lists = [
        [item["id"] for item in server.ask("/recommend", body).json["items"]]
        for slot in ("main", "compare")
        if (body := {"history": ["i7", "i10", "i13"], "bundle": slot})
    ]
    assert [listed(page, 0), listed(page, 1)] == lists
    both = set(lists[0]) & set(lists[1])
    expect(page.locator("#overlap")).to_have_text(f"{len(both)} of 20 items in both lists")
    rows = page.locator("#lists ol.items").first.locator("> li")
    for place, key in enumerate(lists[0]):
        tag = f"⇄ {lists[1].index(key) + 1}" if key in both else "only here"
        expect(rows.nth(place).locator(".tag")).to_have_text(tag)
    expect(page.locator("#bundles")).to_contain_text("films-mind")
    expect(page.locator("#bundles")).to_contain_text("films-youtube")


def test_similar_items(tab: Tab, server: RunningServer) -> None:
    page = tab.open(HISTORY)
    first = listed(page)[0]
    page.locator("#lists .more").first.click()
    dialog = page.locator("#similar")
    expect(dialog).to_be_visible()
    expect(dialog.locator("ol.items")).to_have_count(2)
    rows = dialog.locator("ol.items").first.locator("> li")
    asked = server.ask(f"/similar?id={first}&k=15").json["items"]
    assert rows.evaluate_all("all => all.map(r => r.dataset.id)") == [i["id"] for i in asked]
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.locator("#lists .add").first.focus()
    page.keyboard.press("s")
    expect(dialog).to_be_visible()
    free = next(item["id"] for item in asked if item["id"] not in history(page))
    dialog.locator(f'li[data-id="{free}"] .add').first.click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#history li")).to_have_count(4)
    assert history(page)[0] == free  # newest first


def test_the_keyboard_is_enough(tab: Tab) -> None:
    page = tab.open(HISTORY)
    page.locator("#lists .add").first.focus()
    second, other = listed(page)[1], listed(page, 1)[1]
    focused = "document.activeElement.closest('li').dataset.id"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == second
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == other
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(4)
    expect(page.locator("#lists li :focus")).to_have_count(1)  # the focus stays there
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(page.locator(".tiles")).to_be_visible()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_user_features_change_the_answer(tab: Tab) -> None:
    page = tab.open(HISTORY)
    before = page.locator("#lists .score").all_inner_texts()
    page.click("#profile summary")
    page.locator("#features select").select_option("fr")
    page.wait_for_url("**u.country=fr**")
    expect(page.locator("#lists .score").first).not_to_have_text(before[0])
    page.locator("#features input").fill("very old")
    page.locator("#features input").blur()
    expect(page.locator("#notice")).to_contain_text("age")  # the server's sentence
    tab.complaints.clear()  # the browser notes the refusal


def test_filters_limit_the_lists_and_stay_in_the_address(tab: Tab) -> None:
    page = tab.open(HISTORY)
    page.click("#filters summary")
    page.get_by_label("genre").fill("Love, Crime")
    page.get_by_label("genre").blur()
    page.wait_for_url("**f.genre=Love**")
    page.get_by_label("year").fill("1960..1999")
    page.get_by_label("year").blur()
    page.wait_for_url("**f.year=1960..1999**")
    expected = {key for place, key in enumerate(KEYS) if place % 3 and 10 <= place <= 49}
    wait_until(lambda: set(listed(page)) <= expected)
    assert len(listed(page)) == 20
    page = tab.open(f"{HISTORY}&f.year=1959..1959")
    page.reload()
    wait_until(lambda: listed(page) == [KEYS[9]])
    page.get_by_label("year").fill("long ago")
    page.get_by_label("year").blur()
    expect(page.locator("#notice")).to_contain_text("filter.year must be an integer")
    tab.complaints.clear()  # the browser notes the refusal


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ["", HISTORY, f"{HISTORY}&view=interests"])
def test_all_text_has_enough_contrast(
    browser: Any, server: RunningServer, scheme: str, address: str
) -> None:
    tab = Tab(browser, server, color_scheme=scheme, reduced_motion="reduce")
    page = tab.open(address)
    assert page.evaluate(CONTRAST) == []
    page.keyboard.press("?")
    assert page.evaluate(CONTRAST) == []
    tab.context.close()


def test_light_and_dark(browser: Any, server: RunningServer) -> None:
    tab = Tab(browser, server, color_scheme="dark")
    page = tab.open()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("t")
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    page.wait_for_selector(".tiles")
    assert page.evaluate(background) == light  # remembered
    tab.context.close()


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1920])
@pytest.mark.parametrize("address", ["", HISTORY, f"{HISTORY}&view=interests"])
def test_nothing_is_wider_than_the_window(
    browser: Any, server: RunningServer, width: int, address: str
) -> None:
    tab = Tab(browser, server, viewport={"width": width, "height": 800})
    page = tab.open(address)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for button in page.locator("#lists .add").all()[:3]:
        box = button.bounding_box()
        assert box["width"] > 40
    tab.context.close()


def test_a_token_is_asked_for_and_kept_out_of_the_url(browser: Any, youtube_path: Path) -> None:
    token = "correct-horse-battery-staple"
    with RunningServer(youtube_path, env={"CROSSBATCH_TOKEN": token}) as guarded:
        tab = Tab(browser, guarded)
        page = tab.page
        page.goto(tab.base)
        expect(page.locator("#token-form")).to_be_visible()
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token-form")).to_be_visible()
        page.fill("#token", token)
        page.keyboard.press("Enter")
        expect(page.locator(".tiles")).to_be_visible()
        expect(page.locator("#token-form")).to_be_hidden()
        page.locator(".tiles button").first.click()
        expect(page.locator("#history li")).to_have_count(1)
        assert token not in page.url
        assert not [url for url in tab.requests if token in url]
        tab.context.close()


def test_an_unreachable_server_is_reported(browser: Any, youtube_path: Path) -> None:
    with RunningServer(youtube_path) as server:
        tab = Tab(browser, server)
        page = tab.open(f"#history={KEYS[0]}")
    page.locator("#lists .add").first.click()
    expect(page.locator("#notice")).to_contain_text("does not answer")
    tab.context.close()
