"""The page in a real browser: Debian's chromium, headless. Skipped where there is none."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from floater.report.page import write_report

from .folders import make_run, sample

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]
WIDTHS = [390, 1400]
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(sample(folder), folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens pages; fails if one of them logged a message or requested anything from elsewhere."""
    troubles: list[str] = []
    contexts = []

    def open_page(path: Path, width: int, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "blob:", "data:"))
                else troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_function(
            "document.querySelectorAll('.map').length === "
            "document.querySelectorAll('.map[data-drawn]').length"
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def colours(page: Page, number: int = 0) -> int:
    """The number of different colours on the canvas of a map."""
    code = """(number) => {
        const canvas = document.querySelector(`#map-${number} canvas`);
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(data.buffer)).size;
    }"""
    count: int = page.evaluate(code, number)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_drawn_and_nothing_sticks_out(
    report: Path, opened: Opener, width: int, scheme: str
) -> None:
    page = opened(report, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for number in range(4):
        assert page.locator(f"#chart-{number} svg .mark").count() > 0
    assert page.locator("#chart-3 svg path.curve").count() == 3
    assert all(colours(page, number) > 20 for number in (0, 1))
    assert page.locator("#path-0 svg circle").count() == 24 + 1
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_can_be_hidden_and_shown(report: Path, opened: Opener, width: int) -> None:
    page = opened(report, width)
    for expected, action in ((2, "uncheck"), (3, "check")):
        getattr(page.get_by_role("checkbox", name="own"), action)()
        assert page.locator("#chart-3 svg path.curve").count() == expected
        assert page.locator("#chart-1 svg .dot").count() == expected
        assert page.locator("#map-1").is_visible() == (expected == 3)
        assert page.locator("#scores tbody tr[data-run='1']").first.is_visible() == (expected == 3)
        assert page.locator("#map-0").is_visible()
    page.locator("#chart-3 ~ .legend button", has_text="rotary").click()
    assert not page.get_by_role("checkbox", name="rotary").is_checked()
    assert page.locator("#chart-3 svg path.curve").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_another_curve_can_be_chosen(report: Path, opened: Opener, width: int) -> None:
    page = opened(report, width)
    before = page.locator("#chart-3 svg path.curve").first.get_attribute("d")
    page.get_by_label("Show").last.select_option(label="training loss")
    assert page.locator("#chart-3 svg path.curve").first.get_attribute("d") != before
    assert page.locator("#chart-3 svg").get_by_text("smoothed loss per token").count() == 1


@pytest.mark.slow
def test_values_are_read_out_under_the_pointer_and_by_keys(report: Path, opened: Opener) -> None:
    page = opened(report, 1400)
    chart, readout = page.locator("#chart-3"), page.locator("#chart-3-readout")
    chart.hover(position={"x": 56, "y": 100})
    assert readout.inner_text() == "updates 50: flow 5 · own 4.5 · rotary 4"
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert readout.inner_text() == "updates 150: flow 15 · own 14.5 · rotary 14"
    page.locator("#map-0 canvas").hover(position={"x": 42, "y": 8})
    assert page.locator("#map-0-readout").inner_text().startswith("position 0 (t = 0), dimension ")
    page.locator("#map-1").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert (
        page.locator("#map-1-readout").inner_text() == "position 1 (t = 0.1), dimension 1: 0.199"
    )  # sin(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_maps_follow_site_view_order_and_length(report: Path, opened: Opener, width: int) -> None:
    page = opened(report, width)

    def pixels() -> str:
        url: str = page.evaluate("document.querySelector('#map-0 canvas').toDataURL()")
        return url

    seen = [pixels()]
    page.locator("#site-0").select_option(label="encoder block 2")
    seen.append(pixels())
    page.locator("#order").select_option("as-is")
    seen.append(pixels())
    page.locator("#shown").fill("10")
    seen.append(pixels())
    assert (
        page.locator("#path-0 svg circle").count() == 10 + 1
    )  # the mark of the trained length is past the end
    page.locator("#view").select_option("similarity")
    seen.append(pixels())
    assert len(set(seen)) == len(seen)
    page.locator("#path").select_option("time")
    assert page.locator("#path-0 svg path.curve").count() == 5


@pytest.mark.slow
def test_the_similarity_is_the_product_of_two_encodings(report: Path, opened: Opener) -> None:
    page = opened(report, 1400)
    page.locator("#view").select_option("similarity")
    page.locator("#map-1").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    product = sum(math.sin(0.1 * speed) ** 2 for speed in range(1, 7))
    assert page.locator("#map-1-readout").inner_text() == f"p(1) · p(1) = {product:.3f}"


@pytest.mark.slow
def test_the_theme_is_a_button(report: Path, opened: Opener) -> None:
    page = opened(report, 1400)
    before = page.evaluate("document.querySelector('#map-0 canvas').toDataURL()")
    button = page.get_by_role("button", name="Theme")
    for theme in ("light", "dark"):
        button.press("Enter")
        assert button.inner_text() == f"Theme: {theme}"
    assert page.evaluate("document.querySelector('#map-0 canvas').toDataURL()") != before
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 27)"


@pytest.mark.slow
def test_every_control_can_be_reached_by_tab_and_has_a_name(report: Path, opened: Opener) -> None:
    page = opened(report, 1400)
    names = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [tabindex="0"]')]
             .filter((control) => control.offsetParent)
             .map((it) => it.ariaLabel || it.labels?.[0]?.textContent || it.textContent)"""
    )
    assert len(names) > 15
    assert all(name.strip() for name in names)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {
        "theme",
        "chart-1",
        "chart-3",
        "view",
        "order",
        "shown",
        "map-0",
        "SUMMARY",
        "BUTTON",
    } <= reached
    page.locator("#view").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.slow
def test_it_prints_in_light_colours(report: Path, opened: Opener) -> None:
    page = opened(report, 1400, "dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 41)"
    assert not page.locator("#toggles").is_visible()
    assert len(page.pdf()) > 10_000


def test_a_name_that_is_a_script_stays_a_name(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path / "<img src=x onerror=console.log(1)>")
    write_report([run, make_run(tmp_path / "b")], tmp_path / "report.html")
    page = opened(tmp_path / "report.html", 1400)
    assert page.locator("main img").count() == 0
    assert page.locator(".legend button").first.inner_text() == "<img src=x onerror=console.log(1)>"


def test_scores_of_zero_stand_on_a_scale_from_zero(tmp_path: Path, opened: Opener) -> None:
    """The axis shows neither negative BLEU nor millionths."""
    nothing = {"pairs": 9, "bleu": {"score": 0.0, "interval": 0.0, "signature": ""}}
    run = make_run(
        tmp_path / "flow", {"test": {**nothing, "bins": {"0-9": nothing, "9+": nothing}}}
    )
    write_report([run], tmp_path / "report.html")
    page = opened(tmp_path / "report.html", 1400)
    ticks = page.locator("#chart-1 svg text[text-anchor=end]").all_text_contents()
    assert [float(tick) for tick in ticks] == [0, 0.2, 0.4, 0.6, 0.8, 1]
