"""Renew the pictures of the report in docs/images: two views of real pages, in a headless Chromium.

Needs the samples, torch, plotly, selenium and Debian's chromium with its driver. A picture is
written only below its limit of 250 kB, so that a clone of the repository stays small.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
LIMIT = 250_000
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"),
    *("--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


@dataclass(frozen=True)
class Shot:
    """One picture: which page, from which element on, how large, in which theme."""

    name: str
    sample: str
    top: str
    width: int
    height: int
    dark: bool = False


SHOTS = (
    Shot("report-summary", "minilm", ".masthead", 1200, 880),
    Shot("report-sphere", "minilm", "#sphere", 1200, 700, dark=True),
)


def browser() -> Any:
    """A headless Chromium with a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, f"--user-data-dir={tempfile.mkdtemp()}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def take(driver: Any, page: Path, shot: Shot) -> bytes:
    """The picture as PNG, with a palette where that is needed to stay below the limit."""
    send = driver.execute_cdp_cmd
    scheme = {"name": "prefers-color-scheme", "value": "dark" if shot.dark else "light"}
    send("Emulation.setEmulatedMedia", {"features": [scheme]})
    view = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
    send("Emulation.setDeviceMetricsOverride", view)
    driver.get(page.as_uri())
    while driver.execute_script("return document.documentElement.dataset.ready") != "true":
        time.sleep(0.2)
    style = "document.head.append(Object.assign(document.createElement('style'), {textContent: "
    hide = ".modebar-container, .top { visibility: hidden; }"
    driver.execute_script(f"{style}{hide!r}}}));")
    top = driver.execute_script(
        "return scrollY + document.querySelector(arguments[0]).getBoundingClientRect().top",
        shot.top,
    )
    time.sleep(1)
    clip = {"x": 0, "y": max(0, top - 16), "width": shot.width, "height": shot.height, "scale": 1}
    asked = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    return smaller(base64.b64decode(send("Page.captureScreenshot", asked)["data"]))


def smaller(png: bytes) -> bytes:
    """The picture with a palette of 255 colours: a third of the bytes, and no eye sees it."""
    from PIL import Image

    sink = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(255).save(sink, "png", optimize=True)
    return min(png, sink.getvalue(), key=len)


def main() -> None:
    """Make the pages and the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--pages", type=Path, help="folder with finished pages (NAME.html); missing ones are made"
    )
    folder = parser.parse_args().pages or Path(tempfile.mkdtemp())
    from eigenlens.report.page import write_report

    for sample in dict.fromkeys(shot.sample for shot in SHOTS):
        if not (folder / f"{sample}.html").exists():
            write_report(f"sample:{sample}", folder / f"{sample}.html")
    IMAGES.mkdir(parents=True, exist_ok=True)
    driver = browser()
    try:
        for shot in SHOTS:
            png = take(driver, (folder / f"{shot.sample}.html").absolute(), shot)
            if len(png) > LIMIT:
                raise SystemExit(f"{shot.name}: {len(png)} bytes are more than {LIMIT}")
            (IMAGES / f"{shot.name}.png").write_bytes(png)
            print(f"docs/images/{shot.name}.png: {len(png)} bytes")
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
