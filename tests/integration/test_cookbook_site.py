"""The site in a real Chromium: every choice, every page, both themes, and without JavaScript."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from slipway.cli import command as program
from slipway.cookbook.generate import generate, reachable
from slipway.cookbook.load import load_pages
from slipway.cookbook.render import FORMS, render
from slipway.cookbook.site import Site, build
from support.browser import axe_source, chromium
from support.web import web_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
SLUGS = sorted(path.stem for path in (ROOT / "docs/cookbook/recipes").glob("*/*.toml"))
LIMIT = 300_000  # bytes of a page with its style and scripts
BATCH = 1000

# Clicks the page's own radio buttons until they are as wanted, then reads what the panel shows.
DRIVE = """(wanted) => {
  const pick = (name, value) => document.querySelector(
    `.choices input[name="${name}"][value="${value}"]`);
  return wanted.map(({ choices, form, node, expected }) => {
    for (let round = 0; round < 3; round += 1) {
      for (const [name, value] of Object.entries(choices)) {
        const input = pick(name, value);
        if (!input.checked) input.click();
      }
    }
    const missed = Object.entries(choices).filter(([name, value]) => !pick(name, value).checked);
    if (missed.length) return `could not choose ${JSON.stringify(missed)}`;
    const tab = document.getElementById(`form-${form}`);
    if (tab.getAttribute("aria-selected") !== "true") tab.click();
    const select = document.querySelector(".node select");
    if (select.options.length > 1 && select.value !== String(node)) {
      select.value = String(node);
      select.dispatchEvent(new Event("change"));
    }
    const shown = document.querySelector("#output code").textContent;
    return shown === expected ? null : shown;
  });
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Path]:
    folder = tmp_path_factory.mktemp("cookbook") / "site"
    return build(ROOT, folder, program), folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1440, "height": 900})
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(built: tuple[Site, Path]) -> Iterator[str]:
    """The site over HTTP on loopback."""
    with web_folder(built[1]) as url:
        yield url


def opened(context: BrowserContext, folder: Path, url: str) -> Page:
    """A page from the disk; an error in its scripts fails the test."""
    page = context.new_page()
    page.on("pageerror", lambda error: pytest.fail(f"{url}: {error}"))
    page.goto(f"file://{folder}/{url}")
    return page


@pytest.mark.parametrize("slug", SLUGS)
def test_the_panel_gives_what_python_gives_for_every_reachable_choice(
    slug: str, built: tuple[Site, Path], context: BrowserContext
) -> None:
    kitchen = load_pages(ROOT)[slug].kitchen
    page = opened(context, built[1], f"models/{slug}.html")
    forms = list(FORMS)
    batch: list[dict[str, Any]] = []

    def compare() -> None:
        answers = page.evaluate(DRIVE, batch)
        for asked, answer in zip(batch, answers, strict=True):
            assert answer is None, f"{asked}\nthe panel shows:\n{answer}"
        batch.clear()

    for number, choices in enumerate(reachable(kitchen.recipe)):
        command = generate(kitchen, choices)
        form, node = forms[number // 7 % len(forms)], number // 5 % len(command.nodes)
        text = render(kitchen, command, form, node)
        batch.append({"choices": choices, "form": form, "node": node, "expected": text})
        if len(batch) == BATCH:
            compare()
    compare()


def test_mouse_and_keyboard_work_like_the_script(
    built: tuple[Site, Path], context: BrowserContext
) -> None:
    page = opened(context, built[1], "models/glm-5.3.html")
    shown = page.locator("#output code")
    page.locator("label", has=page.locator("input[value=b200]")).click()
    page.locator("label", has=page.locator("input[value=nvfp4]")).click()
    assert "--quantization modelopt_fp4" in shown.inner_text()
    # hardware without NVFP4: the panel moves to the nearest recipe and says why
    page.locator("label", has=page.locator("input[value=mi355x]")).click()
    assert "tilelang" in shown.inner_text()
    notice = page.locator(".notice").inner_text()
    assert "Quantisation is now FP8" in notice
    assert "Blackwell only" in notice
    draft = page.locator("input[name=speculative][value=dflash2]")
    assert draft.is_disabled()
    reasons = page.locator("fieldset[data-id=speculative] .reason").inner_text()
    assert "DFLASH runs on CUDA and NPU only" in reasons
    # arrow keys walk the tabs
    page.locator("#form-shell").focus()
    page.keyboard.press("ArrowRight")
    assert shown.inner_text().startswith("docker run --rm")
    assert "--device /dev/kfd" in shown.inner_text()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("Addresses and paths").click()
    page.get_by_label("Port", exact=True).fill("8123")
    assert "--port 8123" in shown.inner_text()


def test_a_deep_link_restores_the_choices(
    built: tuple[Site, Path], context: BrowserContext
) -> None:
    page = opened(context, built[1], "models/kimi-k3.html")
    for value in ("mi355x", "fp8"):
        page.locator("label", has=page.locator(f"input[value={value}]")).click()
    page.locator("#form-compose").click()
    before, link = page.locator("#output code").inner_text(), page.url
    assert "hw=mi355x" in link
    page.close()
    again = context.new_page()
    again.goto(link)
    assert again.locator("#output code").inner_text() == before
    assert again.locator("input[name=hw][value=mi355x]").is_checked()
    broken = context.new_page()
    broken.goto(link.split("#")[0] + "#?hw=nothing&quant=x&<b>=1")
    assert "sglang serve" in broken.locator("#output code").inner_text()


def test_copy_gives_the_command(address: str, context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    page = context.new_page()
    page.goto(f"{address}/models/smollm2-135m.html")
    page.locator(".bar .copy").click()
    page.wait_for_selector(".bar .copy.done")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#output pre").text_content()
    assert copied.startswith("keel serve")


def test_search_finds_pages_and_sections(built: tuple[Site, Path], context: BrowserContext) -> None:
    page = opened(context, built[1], "guides/hisparse.html")
    page.keyboard.press("/")
    page.keyboard.type("dflash2 blackwell")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("speculative decoding")
    first = page.locator("#results li").first
    first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/*.html#speculative-decoding")
    box = page.locator("#speculative-decoding").bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 900


def test_the_theme_follows_the_system_until_the_reader_chooses(
    address: str, browser: Browser
) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{address}/index.html")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator(".theme").click()
    light = page.evaluate(ground)
    assert dark != light
    page.goto(f"{address}/models/kimi-k3.html")
    assert page.evaluate(ground) == light
    context.close()


def test_without_javascript_the_command_and_every_recipe_are_there(
    built: tuple[Site, Path], browser: Browser
) -> None:
    site, folder = built
    context = browser.new_context(
        java_script_enabled=False, viewport={"width": 1280, "height": 800}
    )
    for page in site.pages:
        if page.recipe is None:
            continue
        tab = context.new_page()
        tab.goto(f"file://{folder}/{page.url}")
        kitchen = page.recipe.kitchen
        text = render(kitchen, generate(kitchen, {}), "shell")
        assert tab.locator("#output code").inner_text() == text
        assert tab.get_by_text("The choices need JavaScript").is_visible()
        cells = page.context["cells"]
        assert tab.locator("details.cell").count() == len(cells)
        for cell in cells:
            assert cell["text"] in (tab.locator(f"#{cell['anchor']} pre").text_content() or "")
        tab.close()
    context.close()


def test_no_request_leaves_the_sites_origin_and_no_page_is_heavy(
    built: tuple[Site, Path], address: str, context: BrowserContext
) -> None:
    site, folder = built
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    for page in site.pages:
        asked.clear()
        tab.goto(f"{address}/{page.url}")
        tab.locator("#search").focus()
        tab.wait_for_function("window.slipwayIndex !== undefined")
        assert all(url.startswith(address) for url in asked), asked
        files = {url.removeprefix(f"{address}/").split("?")[0] for url in asked}
        size = sum((folder / name).stat().st_size for name in files if (folder / name).is_file())
        assert size < LIMIT, f"{page.url}: {size} bytes"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_no_serious_fault_and_nothing_is_wider_than_the_window(
    scheme: Literal["light", "dark"], width: int, built: tuple[Site, Path], browser: Browser
) -> None:
    axe = axe_source()
    site, folder = built
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    faults: list[str] = []
    tab = opened(context, folder, "index.html")
    for page in site.pages:
        if scheme == "dark" and page.url.startswith("reference/"):
            continue  # the guides have the same template and more kinds of text
        tab.goto(f"file://{folder}/{page.url}")
        over = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if over > 0:
            faults.append(f"{page.url}: {over} px wider than the window")
        # All of them have the same markup.
        tab.evaluate("[...document.querySelectorAll('details.cell')].slice(0, 2)"
                     ".forEach((one) => { one.open = true; })")  # fmt: skip
        tab.evaluate(axe)
        found = tab.evaluate("axe.run({ resultTypes: ['violations'] })")
        faults += [
            f"{page.url}: {fault['id']} ({fault['impact']}): {fault['help']}: "
            + json.dumps([node["target"] for node in fault["nodes"]][:3])
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
        ]
    context.close()
    assert not faults, "\n".join(faults)


def test_the_html_is_valid(built: tuple[Site, Path]) -> None:
    html5lib = pytest.importorskip("html5lib")
    site, folder = built
    for page in site.pages:
        text = (folder / page.url).read_text(encoding="utf-8")
        parser = html5lib.HTMLParser(strict=False, namespaceHTMLElements=False)
        tree = parser.parse(text)
        assert parser.errors == [], f"{page.url}: {parser.errors[:5]}"
        ids = [element.get("id") for element in tree.iter() if element.get("id")]
        assert len(ids) == len(set(ids)), f"{page.url}: an id is there twice"
