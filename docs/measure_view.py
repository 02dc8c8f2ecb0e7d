"""Measure what the server of `attnlab view` takes of a core while pages watch training, and how fast it answers.

Use: ``python docs/measure_view.py runs/shapes [--pages 100] [--records 100000]``: a copy of the study is served in a
process of its own, records are appended to one of its runs twice a second, beside those that are there already, and the
time of all threads of the server is read from Linux. ``python docs/measure_view.py RUN --length 128``, of a run of
characters: every head is switched off in turn on a text of so many, and the times of the answers are told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

SECONDS, WARM_S = 30, 8  # what is measured, and what goes before
TEXT = "Now is the winter of our discontent made glorious summer by this sun of York; "
SERVE = "import sys, pathlib; from attnlab.viewer.server import serve; serve(pathlib.Path(sys.argv[1]), port=0)"


async def watch(port: int) -> None:
    """Read the stream of the study as a page does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(f"GET /events/copy HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
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


async def measure(server: subprocess.Popen[str], study: Path, pages: int, before: int) -> float:
    """The share of a core."""
    port = urlsplit(server.stdout.readline().split()[0]).port
    records = max(study.glob("*/seed-*/metrics.jsonl"))
    (records.parent / "result.json").unlink(missing_ok=True)
    with records.open("a") as file:
        file.writelines(
            json.dumps({"step": step, "tokens": step, "seconds": step / 2, "train_loss": 1.0}) + "\n"
            for step in range(500_000, 500_000 + before)
        )
    going = [asyncio.create_task(watch(port)) for _ in range(pages)] + [asyncio.create_task(train(records))]
    await asyncio.sleep(WARM_S)
    start = seconds_of(server.pid)
    await asyncio.sleep(SECONDS)
    share = (seconds_of(server.pid) - start) / SECONDS
    for one in going:
        one.cancel()
    return share


def look(port: int, text: str, off: Sequence[str]) -> tuple[float, bytes]:
    """Seconds until a text is answered, and the answer."""
    body = json.dumps({"text": text, "off": list(off), "trust": True}).encode()
    server = f"http://127.0.0.1:{port}"
    asking = urllib.request.Request(
        f"{server}/run/copy/look", body, {"Content-Type": "application/json", "Origin": server}
    )
    start = time.perf_counter()
    with urllib.request.urlopen(asking) as answer:
        found = answer.read()
    return time.perf_counter() - start, found


def answers(server: subprocess.Popen[str], length: int) -> str:
    """How fast a run answers with each of its heads off."""
    port = urlsplit(server.stdout.readline().split()[0]).port
    text = (TEXT * (1 + length // len(TEXT)))[:length]
    first, answer = look(port, text, [])
    places = [f"{layer['name']}:{head}" for layer in json.loads(answer)["layers"] for head in range(layer["shape"][0])]
    found = [look(port, text, [place]) for place in places]
    times = sorted(1000 * seconds for seconds, _ in found)
    return (
        f"{length} characters: first look {first:.2f} s; with one of {len(places)} heads off "
        f"{statistics.median(times):.0f} ms (median), {times[-1]:.0f} at most; "
        f"{len(found[0][1]) / 1000:.0f} kB an answer"
    )


def main() -> None:
    """Serve a copy, measure, tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(asked.folder, Path(folder) / "copy")
        server = subprocess.Popen([sys.executable, "-c", SERVE, folder], stdout=subprocess.PIPE, text=True)
        try:
            if asked.length:
                print(answers(server, asked.length))
                return
            share = asyncio.run(measure(server, copy, asked.pages, asked.records))
        finally:
            server.terminate()
            server.wait()
    runs = len(list(asked.folder.glob("*/seed-*")))
    print(f"{asked.pages} pages, {runs} runs, {asked.records} records: {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
