"""A model of vLLM's lease loop on P, to compare with: a dictionary from request id to deadline."""

import random
import time

HEARTBEAT_IDS = 1024
EXTENSION_S = 20.0


def request_ids(live: int) -> list[str]:
    """As long as those of lease_bench.cc."""
    return [f"chatcmpl-{i * 0x9E3779B97F4A7C15 % 2**64:016x}{i:016x}--00-0badcafe" for i in range(live)]


class CPythonModel:
    """Does what lease_bench.cc does under the same names; each call returns ns for each time."""

    def __init__(self, live: int) -> None:
        ids = request_ids(live)
        self.now = time.perf_counter()
        self.deadlines = {i: self.now + 30.0 for i in ids}
        self.readers_done: dict[str, int] = {}
        random.Random(1).shuffle(ids)
        self.heartbeats = [("HB:" + ",".join(ids[first:first + HEARTBEAT_IDS])).encode()
                           for first in range(0, live, HEARTBEAT_IDS)]

    def idle_step(self, times: int) -> float:
        begun = time.perf_counter_ns()
        for _ in range(times):
            now = self.now
            expired = [i for i, deadline in self.deadlines.items() if now >= deadline]
            assert not expired
        return (time.perf_counter_ns() - begun) / times

    def renew_all(self, times: int) -> float:
        begun = time.perf_counter_ns()
        for _ in range(times):
            self.now += 0.001
            for heartbeat in self.heartbeats:
                self.on_heartbeat(heartbeat)
        return (time.perf_counter_ns() - begun) / times

    def on_heartbeat(self, payload: bytes) -> None:
        text = payload.decode()
        if text.startswith("HB:"):
            until = self.now + EXTENSION_S
            deadlines = self.deadlines
            for request_id in text[3:].split(","):
                deadline = deadlines.get(request_id)
                if deadline is not None:
                    deadlines[request_id] = max(deadline, until)

    def grant_and_free(self, times: int) -> float:
        granted = "chatcmpl-the-one-that-comes-and-goes-again---0-0badcafe"
        message = f"{granted}:1".encode()
        begun = time.perf_counter_ns()
        for _ in range(times):
            self.deadlines[granted] = self.now + 30.0
            request_id, readers = message.decode().rsplit(":", 1)
            done = self.readers_done.get(request_id, 0) + 1
            self.readers_done[request_id] = done
            if request_id in self.deadlines and done == int(readers):
                del self.readers_done[request_id]
                del self.deadlines[request_id]
        return (time.perf_counter_ns() - begun) / times
