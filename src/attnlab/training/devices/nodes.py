"""Several machines that train one model: they meet at an address of one of them, which leads the others.

Each runs the same command. Whose address it is leads: it says what is computed next, and the others follow until it is
done. What they say to each other lies in a store of torch (c10d) at the address. Experimental.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from attnlab.core.errors import AttnlabError, RunError, SpecError

if TYPE_CHECKING:
    from torch.distributed import TCPStore

PATIENCE_S = 120.0
"""How long machines wait for each other at the start."""
LOOK_EVERY_S = 0.2
PARTING_S = 10.0  # that the first machine stays for the others to hear of the end
CONNECT_S = 5.0  # within which an address takes a connection
ANSWER_S = 30.0  # within which a store that is there answers
MOST_PORTS = 65535
GONE = "the same command on each goes on from the last checkpoint"


@final
@dataclass(frozen=True)
class Nodes:
    """Say which of several machines this is, for processes of all of them that train one model.

    Parameters
    ----------
    count : int
        How many machines.
    number : int
        Which one this is, from 0; the first one writes, and the address is its own.
    host, port : str, int
        An address of the first machine, where the processes find each other; the port is free there.
    """

    count: int = 1
    number: int = 0
    host: str = "localhost"
    port: int = 0

    def each_of(self, devices: int, name: str = "devices") -> int:
        """How many devices each machine has."""
        if devices % self.count:
            raise SpecError(f"{name} {devices} cannot be divided among {self.count} nodes")
        return devices // self.count

    def launched(self) -> dict[str, Any]:
        """What torch's launcher is told."""
        if self.count == 1:
            return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
        how = {"rank": self.number, "timeout": int(PATIENCE_S)}
        return {"rdzv_backend": "static", "rdzv_endpoint": f"{self.host}:{self.port}", "rdzv_configs": how}


def parse_address(address: str | None, nodes: int) -> tuple[str, int]:
    """The host and port at which so many machines meet.

    Raises
    ------
    SpecError
        If there is none, or it is no address.
    """
    if not address:
        raise SpecError(
            f"--nodes {nodes} needs --rendezvous HOST:PORT, an address of one of the machines, alike on each"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORTS:
        raise SpecError(f"--rendezvous must be HOST:PORT, such as 10.0.0.1:29500; got {address}")
    return host, int(port)


@contextlib.contextmanager
def meeting_of(count: int, address: str | None) -> Iterator[Meeting]:
    """Meet the other machines; they hear of the end, whether it is a good one or an error."""
    met = Meeting(count, address)
    why = "it was stopped"
    try:
        yield met
        why = ""
    except AttnlabError as error:
        why = str(error)
        raise
    finally:
        if met.number == 0:
            met.end(why)


@final
class Meeting:
    """Meet the other machines; the one that the address belongs to leads.

    Parameters
    ----------
    count : int
        How many machines there are.
    address : str or None
        ``HOST:PORT``, an address of one of them.

    Raises
    ------
    SpecError
        If the address is none, or nothing answers there in time.

    Attributes
    ----------
    number : int
        Of this machine; 0 leads.
    """

    def __init__(self, count: int, address: str | None) -> None:
        self.count, (self.host, self.port) = count, parse_address(address, count)
        self._calls = 0
        led = _opened(self.host, self.port)
        self._store = _joined(self.host, self.port) if led is None else led
        self.number = 0 if led else self._store.add("followers", 1)

    def gather(self) -> None:
        """Wait on the first machine until all are there.

        Raises
        ------
        SpecError
            If some do not come in time, or cannot take part.
        """
        end = time.monotonic() + PATIENCE_S
        while (ready := self._store.add("ready", 0)) < self.count - 1:
            self._raise_refusal()
            if time.monotonic() > end:
                raise SpecError(
                    f"{ready + 1} of {self.count} nodes came to {self.host}:{self.port} within {PATIENCE_S:.0f} s; "
                    "start the same command on each"
                )
            time.sleep(LOOK_EVERY_S)

    def be_ready(self) -> None:
        """Say on a machine that follows that it can take part."""
        self._store.add("ready", 1)

    def refuse(self, text: str) -> None:
        """Say on a machine that follows why it cannot take part."""
        self._tell("refusal", text)

    def _tell(self, name: str, text: str) -> None:
        """Write a text, and stay until it is there: a store does not confirm what is set."""
        with self._reached():
            self._store.set(name, text)
            self._store.get(name)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """What a machine that follows does with the store of the first one, whose loss is an error."""
        try:
            yield
        except RuntimeError:  # torch's errors of stores are
            raise RunError(f"the machine at {self.host}:{self.port} does not answer any more; {GONE}") from None

    def _raise_refusal(self) -> None:
        if self._store.check(["refusal"]):
            raise SpecError(self._store.get("refusal").decode())

    def call(self, what: Mapping[str, Any]) -> Nodes:
        """Say on the first machine what is computed next, and return where the processes of all find each other."""
        place = Nodes(self.count, 0, self.host, _free_port())
        self._store.set(f"call {self._calls}", json.dumps({**what, "port": place.port}))
        self._calls += 1
        return place

    def tell_end(self, error: str = "") -> None:
        """Say on a machine that follows how what it was called to ended."""
        self._tell(f"end {self._calls - 1} {self.number}", error)

    def errors(self) -> list[str]:
        """What the machines that follow say of how the last call failed there; they may be gone, too."""
        end, found = time.monotonic() + PARTING_S, []
        for number in range(1, self.count):
            name = f"end {self._calls - 1} {number}"
            while not (told := self._store.check([name])) and time.monotonic() < end:
                time.sleep(LOOK_EVERY_S)
            if told and (text := self._store.get(name).decode()):
                found.append(text)
        return found

    def end(self, why: str = "") -> None:
        """Say on the first machine that nothing more is computed, and why if it is no good end."""
        self._store.set(f"call {self._calls}", json.dumps({"end": why}))
        end, followers = time.monotonic() + PARTING_S, self._store.add("followers", 0)
        while self._store.add("gone", 0) < followers and time.monotonic() < end:  # the store ends with this process
            time.sleep(LOOK_EVERY_S)

    def heard(self) -> tuple[dict[str, Any], Nodes] | None:
        """What is computed next, and where; None at the end.

        Raises
        ------
        RunError
            If the first machine failed, or is gone.
        """
        name = f"call {self._calls}"
        with self._reached():
            while not self._store.check([name]):
                time.sleep(LOOK_EVERY_S)
            what = json.loads(self._store.get(name))
        self._calls += 1
        if "end" in what:
            self._store.add("gone", 1)
        if what.get("end"):
            raise RunError(f"the machine at {self.host}:{self.port} ended: {what['end']}")
        return None if "end" in what else (what, Nodes(self.count, self.number, self.host, what["port"]))


def _opened(host: str, port: int) -> TCPStore | None:
    """A new store, if the host is this machine and nothing answers at the port."""
    from torch.distributed import DistError, TCPStore

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host.strip("[]"), port))
        except OSError:  # another machine's, or taken
            return None
    try:
        timeout = datetime.timedelta(seconds=ANSWER_S)
        return TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False)
    except (DistError, RuntimeError):
        return None


def _joined(host: str, port: int) -> TCPStore:
    """The store that another machine has opened."""
    from torch.distributed import TCPStore

    end, why = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < end:
        try:
            with socket.create_connection((host.strip("[]"), port), timeout=min(CONNECT_S, PATIENCE_S)):
                pass
            timeout = datetime.timedelta(seconds=ANSWER_S)
            return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            why = str(error).splitlines()[0]
        time.sleep(LOOK_EVERY_S)
    raise SpecError(
        f"nothing answers at {host}:{port} within {PATIENCE_S:.0f} s ({why}); --rendezvous must be an address of one "
        "of the machines, on which the same command runs, and its port open"
    )


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("", 0))
        return tried.getsockname()[1]
