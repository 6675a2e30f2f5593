"""The rendered pages in a real browser: what script does, what reaches the network, what fits on a phone."""

import functools
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Route, expect, sync_playwright

from efficient_training.book.serve import make_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH; `make system` installs it")

PAGES = ["index.html", "chapters/preface.html", "chapters/one.html", "chapters/two.html", "chapters/corrections.html"]
SIZES = {"wide": (1400, 900), "laptop": (1100, 800), "phone": (390, 844)}

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, rendered: Path) -> Iterator[Open]:
    """Opens pages; fails the test on a console error, a script error, or a request for anything outside the book."""
    wrong: list[str] = []
    places = {f"{rendered.as_uri()}/"}
    contexts: list[BrowserContext] = []

    def route(route: Route) -> None:
        if route.request.url.startswith((*places, "data:")):
            route.continue_()
        else:
            wrong.append(f"request for {route.request.url}")
            route.abort()

    def console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(f"console: {message.text}")

    def error(error: Error) -> None:
        wrong.append(f"script: {error}")

    def visit(
        name: str,
        size: str = "wide",
        scheme: str = "light",
        context: BrowserContext | None = None,
        base: str = f"{rendered.as_uri()}/",
    ) -> Page:
        places.add(base)
        if context is None:
            width, height = SIZES[size]
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
            )
            context.set_default_timeout(5000)
            context.route("**/*", route)
            contexts.append(context)
        page = context.new_page()
        page.on("console", console)
        page.on("pageerror", error)
        page.goto(base + name, wait_until="load")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def check_layout(page: Page, width: int) -> None:
    """Nothing makes the page scroll sideways, every picture and every formula is drawn, every font is there."""
    name = page.url
    assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), name
    formulas = page.locator("span.math").count()
    assert page.locator("span.math .katex .katex-html").count() == formulas, name
    assert page.locator(".katex-error").count() == 0, name
    assert page.evaluate("document.fonts.ready.then(fonts => [...fonts].every(font => font.status !== 'error'))"), name


@pytest.mark.parametrize("size", SIZES)
def test_no_page_scrolls_sideways_and_everything_is_drawn(visit: Open, size: str) -> None:
    page = visit(PAGES[0], size)
    for name in PAGES:
        page = visit(name, size, context=page.context)
        check_layout(page, SIZES[size][0])
        if name == "chapters/one.html":
            assert page.locator("span.math").count() > 5


@pytest.mark.parametrize(("size", "scheme"), [("wide", "dark"), ("phone", "light")])
def test_every_page_of_the_book_itself(visit: Open, book: Path, size: str, scheme: str) -> None:
    names = sorted(path.relative_to(book).as_posix() for path in book.rglob("*.html"))
    assert "index.html" in names
    context = None
    for name in names:
        page = visit(name, size, scheme, context, base=f"{book.as_uri()}/")
        context = page.context
        check_layout(page, SIZES[size][0])
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], name
        assert page.evaluate(CONTRAST)["found"] == [], name
        page.close()


def test_search_finds_words_and_leads_to_the_section(visit: Open) -> None:
    page = visit("chapters/two.html")
    page.keyboard.press("/")
    box = page.get_by_role("searchbox")
    expect(box).to_be_focused()
    box.fill("nearly every operation")
    results = page.locator("dialog.search li a")
    expect(results).to_have_count(1)
    expect(results.first.locator("mark").first).to_have_text("nearly")
    box.fill("wrong")
    expect(results.first).to_contain_text("How it goes wrong")
    page.keyboard.press("ArrowDown")
    expect(results.first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/chapters/one.html#sec-one-pitfalls")
    expect(page.locator("#sec-one-pitfalls")).to_be_in_viewport()


def test_search_says_when_there_is_nothing_and_escape_closes_it(visit: Open) -> None:
    page = visit("index.html", "phone")
    page.locator(".search-button").click()
    page.get_by_role("searchbox").fill("<b>zzz")
    expect(page.locator(".search-state")).to_have_text("Nothing found.")
    page.keyboard.press("Escape")
    expect(page.locator("dialog.search")).not_to_be_visible()


def test_dark_mode_follows_the_system_until_it_is_chosen_and_then_persists(visit: Open) -> None:
    theme = functools.partial(Page.evaluate, expression="document.documentElement.dataset.theme")
    paper = functools.partial(Page.evaluate, expression="getComputedStyle(document.body).backgroundColor")
    page = visit("index.html", scheme="dark")
    assert theme(page) == "dark"
    dark = paper(page)
    page.get_by_role("button", name="Dark mode").click()
    assert theme(page) == "light"
    assert paper(page) != dark
    other = visit("chapters/one.html", context=page.context)
    assert theme(other) == "light"
    assert other.get_by_role("button", name="Dark mode").get_attribute("aria-pressed") == "false"
    assert theme(visit("index.html", scheme="light")) == "light"


CONTRAST = """
() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = parse(getComputedStyle(element).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  let checked = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script")) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    checked += 1;
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className}: ${ratio.toFixed(2)}`);
  }
  return { checked, found: [...new Set(found)] };
}
"""


def test_the_served_book_works_like_the_one_on_disk(visit: Open, rendered: Path) -> None:
    with make_server(rendered, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = visit("chapters/one.html", base=f"http://127.0.0.1:{server.server_port}/")
            assert page.locator("span.math .katex-html").count() > 5
            page.keyboard.press("Control+k")
            page.get_by_role("searchbox").fill("corrections")
            expect(page.locator("dialog.search li a").first).to_contain_text("Corrections")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit: Open, scheme: str) -> None:
    page = visit("chapters/one.html", scheme=scheme)
    page.locator("details.callout summary").click()
    result = page.evaluate(CONTRAST)
    assert result["checked"] > 300
    assert result["found"] == []


def test_code_is_copied_as_it_is_written(visit: Open) -> None:
    page = visit("chapters/one.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator(".callout-warning div.sourceCode")
    block.hover()
    block.get_by_role("button", name="Copy this code").click()
    expect(block.locator(".copy")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("from torch.utils.checkpoint import checkpoint\n\ny = checkpoint(block")
    assert "Copy" not in copied


def test_the_note_on_a_value_by_mouse_keyboard_and_touch(visit: Open) -> None:
    page = visit("chapters/one.html")
    value, note = page.locator("p .bound-value").first, page.locator("#note")
    expect(note).not_to_be_visible()
    value.hover()
    expect(note).to_contain_text("one.reduction: 2.5")
    expect(note).to_contain_text("Example CPU")
    expect(value).to_have_attribute("aria-describedby", "note")
    page.mouse.move(5, 5)
    expect(note).not_to_be_visible()
    value.focus()
    expect(note).to_be_visible()
    page.keyboard.press("Escape")
    expect(note).not_to_be_visible()
    page.keyboard.press("Tab")
    expect(note).to_contain_text("one.saved: 3,276,800")
    phone = visit("chapters/one.html", "phone")
    phone.locator(".bound-claim.not-held").click()
    expect(phone.locator("#note")).to_contain_text("one.copy = 1.25 ms")
    box = phone.locator("#note").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_notes_on_citations_and_footnotes(visit: Open) -> None:
    page = visit("chapters/one.html")
    page.locator(".citation a").first.hover()
    expect(page.locator("#note")).to_contain_text("Training Deep Nets with Sublinear Memory Cost")
    page.locator("a.footnote-ref").hover()
    expect(page.locator("#note")).to_contain_text("A footnote with code")
    expect(page.locator("#note")).not_to_contain_text("↩")


def test_tabs_by_mouse_and_keyboard(visit: Open) -> None:
    page = visit("chapters/one.html")
    first, second = page.get_by_role("tab", name="PyTorch"), page.get_by_role("tab", name="Shell")
    panel = page.get_by_role("tabpanel")
    expect(panel).to_have_count(1)
    expect(panel).to_contain_text("class Recipe")
    second.click()
    expect(panel).to_contain_text("make book")
    expect(second).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    expect(first).to_be_focused()
    expect(panel).to_contain_text("class Recipe")


def test_the_keyboard_reaches_the_text_and_what_scrolls(visit: Open) -> None:
    page = visit("chapters/one.html", "phone")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the text")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    wide = page.locator("#tbl-one-typed .scroll")
    expect(wide).to_have_attribute("tabindex", "0")
    wide.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('#tbl-one-typed .scroll').scrollLeft > 0")


def test_landmarks(visit: Open) -> None:
    page = visit("chapters/one.html")
    expect(page.get_by_role("banner")).to_have_count(1)
    expect(page.get_by_role("main")).to_have_count(1)
    for name in ("Chapters", "On this page", "Previous and next"):
        expect(page.get_by_role("navigation", name=name)).to_have_count(1)
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.locator("img:not([alt]), img[alt='']").count() == 0


def test_the_chapter_menu_on_a_phone(visit: Open) -> None:
    page = visit("chapters/one.html", "phone")
    link = page.get_by_role("navigation", name="Chapters").get_by_role("link", name="Mixed precision")
    expect(link).not_to_be_visible()
    button = page.get_by_role("button", name="Chapters")
    button.click()
    expect(link).to_be_visible()
    assert button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    expect(link).not_to_be_visible()
    expect(button).to_be_focused()
    button.click()
    link.click()
    page.wait_for_url("**/chapters/two.html")


def test_the_table_of_contents_follows(visit: Open) -> None:
    page = visit("chapters/one.html")
    page.locator("#sec-one-exercises").evaluate("heading => heading.scrollIntoView()")
    expect(page.locator(".contents a.here")).to_have_text(re.compile("Exercises"))


def test_paper_has_everything_unfolded_and_nothing_to_press(visit: Open) -> None:
    page = visit("chapters/one.html", scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.get_by_text("segments: 5")).to_be_visible()
    expect(page.get_by_text("make run NOTEBOOK=03")).to_be_visible()
    expect(page.get_by_text("class Recipe:")).to_be_visible()
    for hidden in (".bar", ".sidebar", ".contents", ".turn", ".tabs"):
        expect(page.locator(hidden)).not_to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(34, 38, 43)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.callout").get_attribute("open") is None


def test_without_script_everything_is_there_to_read(browser: Browser, rendered: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{rendered.as_uri()}/chapters/one.html")
    for words in ("class Recipe:", "make run NOTEBOOK=03", "2.50×"):
        expect(page.get_by_text(words).first).to_be_visible()
    context.close()
