"""Measure what the server of `attnlab view` takes of a core while many pages watch a study that trains.

Use: ``python docs/measure_view.py runs/shapes [--pages 100]``: a copy of the study is served in a process of its own,
records are appended to one of its runs twice a second, and the time of all threads of the server is read from Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

SECONDS, WARM_S = 30, 8  # what is measured, and what goes before
SERVE = "import sys, pathlib; from attnlab.viewer.server import serve; serve(pathlib.Path(sys.argv[1]), port=0)"


async def watch(port: int) -> None:
    """Read the stream of the study as a page does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(f"GET /events/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    while await reader.read(2**16):
        pass


async def train(records: Path) -> None:
    """Append a record twice a second."""
    for step in range(1_000_000, 2_000_000):
        with records.open("a") as file:
            file.write(json.dumps({"step": step, "tokens": step, "seconds": step / 2, "train_loss": 1.0}) + "\n")
        await asyncio.sleep(0.5)


def seconds_of(process: int) -> float:
    """The time of a core that a process has taken."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def measure(server: subprocess.Popen[str], study: Path, pages: int) -> float:
    """The share of a core."""
    port = urlsplit(server.stdout.readline().split()[0]).port
    records = max(study.glob("*/seed-*/metrics.jsonl"))
    (records.parent / "result.json").unlink(missing_ok=True)
    going = [asyncio.create_task(watch(port)) for _ in range(pages)] + [asyncio.create_task(train(records))]
    await asyncio.sleep(WARM_S)
    before = seconds_of(server.pid)
    await asyncio.sleep(SECONDS)
    share = (seconds_of(server.pid) - before) / SECONDS
    for one in going:
        one.cancel()
    return share


def main() -> None:
    """Serve a copy, measure, tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("study", type=Path)
    parser.add_argument("--pages", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = shutil.copytree(asked.study, Path(folder) / "study")
        server = subprocess.Popen([sys.executable, "-c", SERVE, str(study)], stdout=subprocess.PIPE, text=True)
        try:
            share = asyncio.run(measure(server, study, asked.pages))
        finally:
            server.terminate()
            server.wait()
    print(f"{asked.pages} pages, {len(list(asked.study.glob('*/seed-*')))} runs: {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
