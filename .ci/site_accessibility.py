"""Check pages of the built site with axe-core, on a wide and a narrow screen, in light and dark colours.

    mkdocs build -d SITE && python .ci/site_accessibility.py SITE [PAGE ...]

Fails when axe-core finds something serious or critical. Without pages it takes one of each kind.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

PAGES = (
    "index.html",
    "start/first-agent.html",
    "concepts/steps.html",
    "guides/tools.html",
    "guides/cli.html",
    "recipes/index.html",
    "migrate/langgraph.html",
    "api/harness.html",
    "api/errors.html",
    "performance.html",
    "404.html",
)
SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
COLOURS = ("light", "dark")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
CHECK = """
const done = arguments[arguments.length - 1];
const told = (fault, node) => `${fault.impact} ${fault.id}: ${node.target} ${node.html.slice(0, 99)}`;
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .flatMap((fault) => fault.nodes.map((node) => told(fault, node)))));
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site, on the loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def browser() -> Iterator[Chrome]:
    """A browser without a window."""
    options = ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    # Without a path selenium would look for a driver on the network.
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def faults(driver: Chrome, address: str, script: str) -> list[str]:
    """What axe-core finds on a page that is serious or critical."""
    driver.get(address)
    driver.execute_script(script)
    found: list[str] = driver.execute_async_script(CHECK)
    return found


def main() -> int:
    """Print the faults of each page, on each screen and in each colour."""
    site, *pages = sys.argv[1:]
    script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    checked = count = 0
    with served(Path(site)) as address, browser() as driver:
        driver.set_script_timeout(120)
        for screen, (width, height) in SCREENS.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            for colour in COLOURS:
                scheme = [{"name": "prefers-color-scheme", "value": colour}]
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
                for page in pages or PAGES:
                    checked += 1
                    for fault in faults(driver, f"{address}/{page}", script):
                        count += 1
                        print(f"{page} ({screen}, {colour}): {fault}", flush=True)
    print(f"axe-core: {count} serious or critical faults in {checked} views")
    return 1 if count or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
