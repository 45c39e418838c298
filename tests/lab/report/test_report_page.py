"""The report's page in a real browser: offline, on a phone, in print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bench.gathering import write_runs
from lab.report import page as page_module
from lab.report.make import report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (it is in the extra dev)")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_runs(root, 20, epochs=20)
    for folder in root.rglob("seed=0"):
        (folder / "pictures").mkdir()
    picture = next(root.rglob("seed=0")) / "pictures" / "gradient_norms.png"
    from lab.plotting.figures import new_figure

    new_figure(2, 2)[0].savefig(picture)
    _, out = report([root], "eureka/table_1")
    return out / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    with sync_api.sync_playwright() as playwright:
        try:
            # Without a system browser playwright's own, if `playwright install chromium` was run.
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        yield started
        started.close()


def opened(browser: Any, file: Path, width: int) -> tuple[Any, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 844}, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and problems.append(request.url))
    page.goto(file.as_uri())
    return page, problems


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_opens_offline_and_fits(browser: Any, page_file: Path, width: int) -> None:
    page, problems = opened(browser, page_file, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.wait_for_function("[...document.images].every(image => image.complete)")
    sizes = page.evaluate("[...document.images].map(image => [image.complete, image.naturalWidth, image.width])")
    assert len(sizes) >= 7 and all(complete and natural > 100 for complete, natural, _ in sizes)
    assert all(shown <= width for *_, shown in sizes)
    assert page.locator("#paper td.paper").first.inner_text() == "3/10"
    assert problems == []


def test_every_table_has_a_name_and_its_cells_have_headers(browser: Any, page_file: Path) -> None:
    page, _ = opened(browser, page_file, 1200)
    assert page.locator("table").count() > 3
    for lacking in ("table:not([aria-label])", "th:not([scope])", "tbody tr:not(:has(th))"):
        assert page.locator(lacking).count() == 0, lacking
    # A seed is a header, and no more than a number to look at.
    bold = "e => [...e.children].map(cell => getComputedStyle(cell).fontWeight)"
    assert len(set(page.locator("#runs tbody tr").first.evaluate(bold))) == 1


def test_a_number_leads_to_its_runs(browser: Any, page_file: Path) -> None:
    page, _ = opened(browser, page_file, 1200)
    link = page.locator("section[id^=experiment] th.name a").first
    name = link.inner_text()
    link.click()
    details = page.locator(f"details{link.get_attribute('href')}")
    # The page unfolds it when the browser tells of the new address, which is a moment after the click.
    page.locator(f"details{link.get_attribute('href')}[open]").wait_for(state="attached")
    assert details.get_attribute("open") is not None and name in details.locator("summary").inner_text()
    folders = details.locator("tbody a")
    assert folders.count() == 10
    target = page_file.parent / folders.first.inner_text()
    assert (target / "summary.json").is_file()
    assert folders.first.evaluate("a => a.href").startswith(target.resolve().as_uri().rsplit("/", 2)[0])


def test_a_chart_tells_its_values_and_switches_and_zooms(browser: Any, page_file: Path) -> None:
    assert page_file.stat().st_size < 3_000_000
    page, problems = opened(browser, page_file, 1200)
    figure = page.locator("figure:has(.chart)").first
    figure.scroll_into_view_if_needed()
    over = figure.locator(".u-over")
    over.wait_for()
    assert not figure.locator("img").is_visible()
    over.hover(position={"x": 200, "y": 50})
    first = figure.locator(".legend li:has(button)").first
    page.wait_for_function("e => /^[\\d.]+ \\(/.test(e.textContent)", arg=first.locator(".value").element_handle())
    assert figure.locator(".bar output").inner_text().startswith("epoch ")
    drawn = "e => e.querySelector('canvas').toDataURL()"
    before = figure.evaluate(drawn)
    first.locator("button").click()
    assert first.locator("button").get_attribute("aria-pressed") == "false"
    page.wait_for_function(f"([e, was]) => ({drawn})(e) !== was", arg=[figure.element_handle(), before])
    switched = figure.evaluate(drawn)
    over.drag_to(over, source_position={"x": 100, "y": 60}, target_position={"x": 300, "y": 160})
    page.wait_for_function(f"([e, was]) => ({drawn})(e) !== was", arg=[figure.element_handle(), switched])
    # A setting that is switched on and off again leaves the zoom as it is; a double click shows the whole range.
    same = f"([e, was]) => ({drawn})(e) === was"
    zoomed = figure.evaluate(drawn)
    first.locator("button").click()
    page.wait_for_function(f"([e, was]) => ({drawn})(e) !== was", arg=[figure.element_handle(), zoomed])
    first.locator("button").click()
    page.wait_for_function(same, arg=[figure.element_handle(), zoomed], timeout=5000)
    over.dblclick(position={"x": 50, "y": 50})
    page.wait_for_function(same, arg=[figure.element_handle(), switched], timeout=5000)
    assert figure.locator("[role=img]").get_attribute("aria-label").startswith("Accuracy of all seeds")
    # The arrow keys do what the pointer does.
    told = figure.locator(".bar output")
    figure.locator(".canvas").focus()
    page.keyboard.press("ArrowRight")
    at = int(told.inner_text().removeprefix("epoch "))
    page.keyboard.press("ArrowRight")
    assert told.inner_text() == f"epoch {at + 1}"
    assert "(" in figure.locator(".legend li:has(button)").nth(1).locator(".value").inner_text()
    page.keyboard.press("ArrowLeft")
    assert told.inner_text() == f"epoch {at}"
    # The page is dark where the browser is, and where its reader wishes it.
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(paper) != "rgb(255, 255, 255)"
    assert problems == []


def test_of_many_settings_a_chart_shows_medians_first(browser: Any, tmp_path: Path) -> None:
    write_runs(tmp_path, 140, epochs=3)
    _, out = report([tmp_path])
    page, problems = opened(browser, out / "index.html", 1200)
    chart = page.locator("figure:has(.chart)").first
    chart.scroll_into_view_if_needed()
    chart.locator(".u-over").wait_for()
    buttons = chart.locator(".bar button").all()
    pressed = {button.inner_text(): button.get_attribute("aria-pressed") for button in buttons}
    assert [pressed[name] for name in ("seeds", "median", "middle half of the seeds")] == ["false", "true", "false"]
    # The figures are in two parts, and the chart holds all.
    assert chart.locator("h3").inner_text() == "Accuracy of all seeds, by epoch"
    assert chart.locator("[role=img]").get_attribute("aria-label").startswith("Accuracy of all seeds, by epoch, ")
    assert chart.locator("[role=img]").get_attribute("aria-label").endswith("; and 8 more")
    assert chart.locator(".many").inner_text() == "12 of 14 shown"
    chart.locator(".bar button", has_text="all").click()
    assert chart.locator(".many").inner_text() == ""
    page.emulate_media(media="print")
    assert chart.locator("h3").inner_text() == "Accuracy of all seeds, by epoch (1 of 2)"
    assert problems == []


def test_a_curve_of_one_validation_is_a_dot(browser: Any, tmp_path: Path) -> None:
    write_runs(tmp_path, 1, epochs=1)
    _, out = report([tmp_path])
    page, problems = opened(browser, out / "index.html", 1200)
    chart = page.locator("figure:has(.chart)").nth(1)  # of the loss, which has no star
    chart.scroll_into_view_if_needed()
    canvas = chart.locator("canvas")
    canvas.wait_for()
    # Axes, guides and text are grey.
    coloured = """canvas => { const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4)
            found += Math.max(...data.slice(i, i + 3)) - Math.min(...data.slice(i, i + 3)) > 60;
        return found; }"""
    page.wait_for_function(f"e => ({coloured})(e) > 10", arg=canvas.element_handle(), timeout=5000)
    assert problems == []


def test_charts_without_room_are_figures(browser: Any, page_file: Path, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(page_module, "_PAGE", page_module._FRAME)
    _, out = report([page_file.parent.parent], out=tmp_path / "out")
    page, problems = opened(browser, out / "index.html", 1200)
    page.wait_for_function("[...document.images].every(image => image.complete)")
    charts, figures = page.locator("figure:has(.chart)"), page.locator("figure:not(:has(.chart))")
    assert charts.count() == 0 and figures.count() > 6
    assert all(figures.nth(place).locator("img").is_visible() for place in range(figures.count()))
    assert problems == []


def test_without_scripts_the_pictures_stand_there(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True, color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    figure = page.locator("figure:has(.chart)").first
    assert figure.locator("img").is_visible() and not figure.locator(".chart").is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()


def test_in_print_nothing_is_folded_away(browser: Any, page_file: Path, tmp_path: Path) -> None:
    page, _ = opened(browser, page_file, 1200)
    hidden = page.locator("#runs tbody td").first
    assert not hidden.is_visible()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert hidden.is_visible() and not page.locator("nav").is_visible()
    assert page.pdf(path=tmp_path / "page.pdf", format="A4")[:5] == b"%PDF-"
