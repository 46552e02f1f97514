"""The HTML report in a real browser: it runs, it asks nothing of the network, nothing gets in."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eigenlens.report.page import write_report
from eigenlens.report.page.sections import SECTIONS
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.table import PLOTS
from hostile import FOLDER, PROMPTS, SCRIPT, hostile_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WAIT = 120


def need_chromium() -> None:
    """Skip without a browser; in CI, where one has to be, fail."""
    if CHROMIUM and DRIVER:
        pytest.importorskip("selenium")
        return
    text = "no chromium with its chromedriver is installed (Debian: chromium, chromium-driver)"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full report of a hostile model, in a folder of a hostile name."""
    need_chromium()
    place = tmp_path_factory.mktemp("house")
    target = place / "report.html"
    write_report(str(hostile_model(place)), target, texts=list(PROMPTS), steps=24)
    return target


class Opened:
    """A page that has drawn its figures, and what its browser logged until then."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(path.absolute().as_uri())
        self.wait("return document.documentElement.dataset.ready === 'true'")
        self.log = driver.get_log("browser")
        self.events = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]

    def wait(self, script: str) -> None:
        end = time.monotonic() + WAIT
        while not self.driver.execute_script(script):
            assert time.monotonic() < end, f"waited {WAIT} s for: {script}"
            time.sleep(0.05)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def errors(self) -> list[str]:
        return [e["message"] for e in self.log if e["level"] == "SEVERE"]

    @property
    def blocked(self) -> list[str]:
        """Those of `requests` that the policy stopped before they were sent."""
        names = {
            event["params"]["requestId"]
            for event in self.events
            if event["method"] == "Network.loadingFailed"
            and event["params"].get("blockedReason") == "csp"
        }
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and event["params"]["requestId"] in names
        ]

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, besides itself and what it holds."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and event["params"].get("documentURL", "").startswith("file:")
        ]
        return [url for url in asked if not url.startswith(("data:", "blob:"))][1:]


@pytest.fixture(scope="module")
def opened(browser: Any, page: Path) -> Opened:
    return Opened(browser, page)


@pytest.fixture(autouse=True)
def usual_view(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that changed the view leaves the page as it was."""
    yield
    if "opened" in request.fixturenames:
        view(request.getfixturevalue("opened"), 1280, dark=False)


def view(opened: Opened, width: int, *, dark: bool, height: int = 900) -> None:
    send = opened.driver.execute_cdp_cmd
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    send("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    send("Emulation.setDeviceMetricsOverride", size)
    opened.wait(f"return innerWidth === {width}")


def test_no_error_and_no_request(opened: Opened) -> None:
    assert opened.errors == []
    assert opened.requests == []
    assert opened.run("return performance.getEntriesByType('resource').length") == 0


def test_a_page_that_asks_or_fails_is_found(browser: Any, page: Path, tmp_path: Path) -> None:
    html = page.read_text(encoding="utf-8")
    planted = '<h1><img src="http://127.0.0.1:9/x.png"><script>undefined_name()</script>'
    address = "http://127.0.0.1:9/x.png"
    bad = tmp_path / "bad.html"
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
        open_page = policy.sub("", html, count=1).replace("<h1>", planted, 1)
        bad.write_text(open_page, encoding="utf-8")
        found = Opened(browser, bad)
        assert found.requests == [address]
        assert any("undefined_name is not defined" in e for e in found.errors)
        # Under the policy the script does not run, and nothing leaves.
        bad.write_text(html.replace("<h1>", planted, 1), encoding="utf-8")
        held = Opened(browser, bad)
        assert held.blocked == held.requests
        assert any("Content Security Policy" in e for e in held.errors)
        assert not any("undefined_name is not defined" in e for e in held.errors)
    finally:
        browser.close()
        browser.switch_to.window(first)


def test_nothing_of_the_model_runs(opened: Opened) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        opened.driver.switch_to.alert.accept()
    assert opened.run("return document.querySelector('h1').textContent") == FOLDER
    assert SCRIPT in opened.run("return document.querySelector('#tokens').textContent")
    assert opened.run("return document.scripts.length") == 4
    # What plotly writes of the model is text too: no link, no bold, no script.
    assert opened.run("return document.querySelectorAll('.chart a[href^=http]').length") == 0
    options = opened.run(
        "return [...document.querySelectorAll('#sphere option')].map(o => o.textContent)"
    )
    assert any(SCRIPT in text for text in options)


def test_every_section_has_its_figure(opened: Opened) -> None:
    for section in SECTIONS.values():
        for name in section.figures:
            found = opened.run(
                "const f = document.querySelector(`#${arguments[0]} #figure-${arguments[1]}`);"
                "return [f.getBoundingClientRect().height, f.querySelectorAll("
                "'.main-svg .trace, .main-svg .hm, .gl-container canvas, .cartesianlayer .point,"
                " table.tokens tr').length]",
                section.name,
                name,
            )
            assert found[0] > 150, name
            assert found[1] > 0, name
    assert opened.run("return document.querySelectorAll('.chart.js-plotly-plot').length") == len(
        PLOTS
    )


def test_no_button_sends_a_figure_away(opened: Opened) -> None:
    names = opened.run(
        "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    )
    assert "Download plot as a PNG" in names
    assert not [n for n in names if n and ("hare" in n or "loud" in n or "hart Studio" in n)]


def slide(opened: Opened, name: str, value: int) -> None:
    opened.run(
        "const r = document.querySelector(`#figure-${arguments[0]} input[type=range]`);"
        "r.value = arguments[1]; r.dispatchEvent(new Event('input'));",
        name,
        value,
    )


def test_the_slider_moves_the_tokens(opened: Opened) -> None:
    where = "return document.querySelector('#figure-sphere .chart').data.slice(-1)[0].x"
    output = "return document.querySelector('#figure-sphere output').textContent"
    opened.wait(f"{output} === '3'")
    depths = []
    for depth, label in enumerate(["start", "0", "1", "2", "3"]):
        before = json.dumps(opened.run(where))
        slide(opened, "sphere", depth)
        opened.wait(f"{output} === {label!r}")
        opened.wait(f"return JSON.stringify({where.removeprefix('return ')}) !== '{before}'")
        depths.append(opened.run(where))
    assert len({json.dumps(x) for x in depths}) == 5
    data = json.loads(opened.run("return document.getElementById('data').textContent"))["sphere"]
    last = [
        x
        for x, d, p in zip(data["x"], data["depth"], data["prompt"], strict=True)
        if d == 4 and p == max(data["prompt"])
    ]
    assert depths[-1] == pytest.approx(last, abs=1e-4)


def test_without_webgl_the_sphere_is_flat(browser: Any, page: Path) -> None:
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        blind = (
            "const get = HTMLCanvasElement.prototype.getContext;"
            "HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {"
            "return kind.startsWith('webgl') ? null : get.call(this, kind, ...rest); };"
        )
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": blind})
        flat = Opened(browser, page)
        assert flat.errors == []
        chart = "document.querySelector('#figure-sphere .chart')"
        assert flat.run(f"return {chart}.data.map(t => t.type)") == ["scatter"] * (1 + len(PROMPTS))
        assert flat.run(f"return {chart}.querySelectorAll('.point').length") > 10
        before = flat.run(f"return {chart}.data[1].x")
        slide(flat, "sphere", 0)
        flat.wait(f"return JSON.stringify({chart}.data[1].x) !== '{json.dumps(before)}'")
    finally:
        browser.close()
        browser.switch_to.window(first)


def test_one_prompt_alone_shows_its_tokens(opened: Opened) -> None:
    pick = (
        "const s = document.querySelector('#figure-sphere select');"
        "s.value = arguments[0]; s.dispatchEvent(new Event('change'));"
    )
    state = (
        "return document.querySelector('#figure-sphere .chart').data.slice(2)"
        ".map(t => [t.visible !== false, t.mode])"
    )
    opened.run(pick, "0")
    shown = opened.run(state)
    assert shown == [[True, "markers+text"], *[[False, "markers"]] * (len(PROMPTS) - 1)]
    opened.run(pick, "-1")
    assert opened.run(state) == [[True, "markers"]] * len(PROMPTS)


def test_a_layer_alone_and_a_measure_of_heads(opened: Opened) -> None:
    chart = "document.querySelector('#figure-eigenvalues .chart')"
    everything = opened.run(f"return {chart}.data[1].x.length")
    slide(opened, "eigenvalues", 2)
    opened.wait(f"return {chart}.data[1].x.length < {everything}")
    assert opened.run("return document.querySelector('#figure-eigenvalues output').value") == "1"
    heads = "document.querySelector('#figure-heads .chart')"
    before = opened.run(f"return {heads}.data[0].z[0][0]")
    opened.run(
        "const s = document.querySelector('#figure-heads select');"
        "s.value = 2; s.dispatchEvent(new Event('change'));"
    )
    opened.wait(f"return {heads}.data[0].z[0][0] !== {before}")


def test_dark_by_preference_and_by_button(opened: Opened) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#figure-depth .chart')._fullLayout.font.color"
    light, light_ink = opened.run(paper), opened.run(ink)
    view(opened, 1280, dark=True)
    opened.wait(f"{paper} !== {light!r}")
    assert opened.run(ink) != light_ink
    assert opened.run("return document.getElementById('theme').textContent") == "Light"
    opened.run("document.getElementById('theme').click()")
    assert opened.run(paper) == light
    assert opened.run(ink) == light_ink
    opened.run("localStorage.clear()")


def test_a_phone_shows_all_of_it(opened: Opened) -> None:
    view(opened, 360, dark=False, height=740)
    opened.wait("return document.querySelector('#figure-depth .main-svg').clientWidth < 350")
    assert opened.run("return document.documentElement.scrollWidth") <= 360
    wide = opened.run(
        "return [...document.querySelectorAll('figure, .card, h1, .chart')]"
        ".filter(e => e.getBoundingClientRect().right > 360.5).length"
    )
    assert wide == 0
    sizes = opened.run(
        "return [...document.querySelectorAll('p, figcaption, td, th, button')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11


def test_it_prints(opened: Opened) -> None:
    view(opened, 1280, dark=True)
    made = opened.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    pdf = base64.b64decode(made["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000


def test_the_keyboard_reaches_what_moves(opened: Opened) -> None:
    reached = opened.run(
        "return [...document.querySelectorAll('a, button, select, input, summary, [tabindex]')]"
        ".filter(e => e.tabIndex >= 0 && !e.closest('.chart')).map(e => e.tagName)"
    )
    assert {"A", "BUTTON", "SELECT", "INPUT", "SUMMARY"} <= set(reached)
    unnamed = opened.run(
        "return [...document.querySelectorAll('input, select, button')].filter(e => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels.length)).length"
    )
    assert unnamed == 0


def test_the_button_gives_the_data(opened: Opened, tmp_path: Path) -> None:
    opened.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    opened.run("document.getElementById('download').click()")
    end = time.monotonic() + WAIT
    while not (found := [p for p in tmp_path.iterdir() if p.suffix == ".json"]):
        assert time.monotonic() < end, "no file was downloaded"
        time.sleep(0.05)
    record = json.loads(found[0].read_text(encoding="utf-8"))
    assert record["schema"] == "eigenlens.report/1"
    assert {"spectrum", "trace", "simulate", "sphere", "provenance"} <= set(record)
    assert FIGURES["sphere"].name in record
