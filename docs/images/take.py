"""The pictures of a report that the README shows, light and dark: python docs/images/take.py RUN/report.html

Needs chromium, and pngquant for small files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SIZE = "1100,860"  # width, height: what is shown of the page's beginning


def take(page: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        html, raw = Path(folder) / "report.html", Path(folder) / "report.png"
        html.write_text(page)
        browser = [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        options = [f"--window-size={SIZE}", "--force-device-scale-factor=1.5", f"--screenshot={raw}"]
        subprocess.run([*browser, *options, html.as_uri()], check=True, timeout=120, capture_output=True)
        small = ["pngquant", "--force", "--quality=70-95", "--output", str(target), str(raw)]
        if shutil.which("pngquant"):
            subprocess.run(small, check=True, timeout=60)
        else:
            shutil.copy(raw, target)
    print(target, target.stat().st_size, "bytes")


def main() -> None:
    page = Path(sys.argv[1]).read_text()
    dark = "@media (prefers-color-scheme: dark)"
    assert dark in page, "the report's style has no dark part"
    take(page.replace(dark, "@media not all"), HERE / "report-light.png")
    take(page.replace(dark, "@media all"), HERE / "report-dark.png")


if __name__ == "__main__":
    main()
