"""Take the pictures of `attnlab view` that the README and docs/view.md show.

Use: ``python docs/make_view_pictures.py runs positions-long-small/learned/seed-0``, a folder that is viewed, and a run
of language in it. Needs playwright and a chromium, whose path is ``--chromium`` where it is another than Debian's.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from attnlab.viewer.server import StreamingServer, application

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH = 1200
DRAWN = "main:not(:has(.busy)) .drawing canvas"
COLORS = 128  # of a picture: enough for flat colors, and a third of the bytes
TOKEN = 22  # of the text that is explained, counted from 0


def take(page: Page, name: str, height: int) -> None:
    """Save what the page shows from its top."""
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / name, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, full_page=True)
    shrink(name)


def shrink(name: str) -> None:
    """Keep a picture in fewer colors."""
    with Image.open(IMAGES / name) as picture:
        few = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(IMAGES / name, optimize=True)


def pictures(page: Page, address: str, run: str) -> None:
    """Take them all."""
    page.goto(address)
    take(page, "view-start.png", 780)
    page.goto(f"{address}/study/{quote(str(Path(run).parents[1]))}")
    page.wait_for_selector("#loss path")
    take(page, "view-study.png", 900)
    page.goto(f"{address}/run/{quote(run)}")
    page.wait_for_selector(DRAWN)
    page.locator(".head button").first.click()
    page.wait_for_selector(".total .worse, .total .better")
    page.wait_for_selector(DRAWN)
    page.locator(".head").nth(1).click()
    page.locator(".measure").click()
    page.wait_for_selector(".measured:not(:empty)")
    page.locator(".run .tokens [role=option]").nth(8).hover()
    take(page, "view-run.png", 1060)
    page.locator(".run .tokens [role=option]").nth(TOKEN).click()
    page.wait_for_selector(".why:not(.busy) .reasons section")
    page.locator(".why").screenshot(path=IMAGES / "view-why.png")
    shrink("view-why.png")


def main() -> None:
    """Serve the folder on a free port and look at it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    asked = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamingServer(application(asked.folder))
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked.chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.set_default_timeout(120_000)
        pictures(page, f"http://127.0.0.1:{listener.getsockname()[1]}", asked.run)
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
