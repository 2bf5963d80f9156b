"""Checks what kvlease tells Prometheus, and the alerts and the dashboard that are made from it.

    metrics.py KVLEASE PROMTOOL PROMETHEUS

At rest: every metric that deploy/ names stands in docs/metrics.md; every alert has a severity, words
and a place in docs/alerts.md, and is seen to fire in alerts_test.yml, which promtool runs. At work: two
prefill and two decode instances and a router serve requests while Prometheus scrapes them by
deploy/prometheus/prometheus.yml; promtool accepts what each of them answers, and every query of the
dashboard and every alert has series to answer it.
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy/prometheus/alerts.yml"
TESTS = ROOT / "deploy/prometheus/alerts_test.yml"
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/kvlease.json"

# vLLM's names have a colon, which promtool wants left to recording rules.
COLON = re.compile(r"vllm:\w+ metric names should not contain ':'")
METRIC = re.compile(r"\b(?:kvlease_|vllm:)\w+")
LEASE_SECONDS = 2  # so that some expire while the check runs
SCRAPE_SECONDS = 1
LIMIT_SECONDS = 60


def families() -> dict[str, str]:
    """The types of the metrics that docs/metrics.md lists, by name."""
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    return dict(rows)


def check_names(path: pathlib.Path, known: dict[str, str]):
    series = set(known)
    for name, kind in known.items():
        if kind == "histogram":
            series |= {name + suffix for suffix in ("_bucket", "_sum", "_count")}
    for name in sorted(set(METRIC.findall(path.read_text())) - series):
        yield f"{path.relative_to(ROOT)} names {name}, which docs/metrics.md does not list"


def check_alerts():
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.M))
    tested = set(re.findall(r'alertname="(\w+)"', TESTS.read_text()))
    alerts = re.split(r"^ +- alert: ", RULES.read_text(), flags=re.M)[1:]
    names = {alert.split("\n", 1)[0] for alert in alerts}
    for alert in alerts:
        name = alert.split("\n", 1)[0]
        for part in (r"severity: (critical|warning|info)\b", r"summary: \S", r"description: >-\n +\S",
                     rf"runbook_url: docs/alerts\.md#{name.lower()}\n"):
            if not re.search(part, alert + "\n"):
                yield f"alert {name} has nothing like /{part}/"
        if name not in headings:
            yield f"docs/alerts.md has no heading {name}"
        if name not in tested:
            yield f"{TESTS.name} has no case in which {name} fires"
    yield from (f"docs/alerts.md has {name}, and alerts.yml has not" for name in headings - names)


def queries() -> list[tuple[str, str]]:
    """Title and expression of everything that the dashboard asks."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels if panel["type"] != "row"
            for target in panel["targets"]]


def promtool(tool: str, *arguments: str, stdin: str = "") -> tuple[int, str]:
    run = subprocess.run([tool, *arguments], cwd=RULES.parent, input=stdin, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout.strip()


def check_at_rest(tool: str):
    known = families()
    for path in (RULES, TESTS, DASHBOARD, ROOT / "docs/alerts.md", ROOT / "deploy/README.md"):
        yield from check_names(path, known)
    yield from check_alerts()
    for arguments in (("check", "rules", RULES.name), ("check", "config", CONFIG.name),
                      ("test", "rules", TESTS.name)):
        status, words = promtool(tool, *arguments)
        if status != 0:
            yield f"promtool {' '.join(arguments)}:\n{words}"


def ask(port: int, path: str, body: dict | None = None, timeout: float = 30) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data,
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


def is_well(port: int, path: str, unwanted: str = "") -> bool:
    """Whether it answers 200, with a text that lacks `unwanted` when that is given."""
    try:
        text = ask(port, path)
    except urllib.error.HTTPError:
        return False
    return not unwanted or unwanted not in text


class Stack:
    """The processes under check; all end with it."""

    def __init__(self, kvlease: str) -> None:
        self.kvlease = kvlease
        self.processes: list[subprocess.Popen] = []
        self.ports: dict[str, int] = {}

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def start(self, name: str, *arguments: str) -> None:
        process = subprocess.Popen([self.kvlease, *arguments, "--port", "0"], text=True,
                                   stdout=subprocess.PIPE)
        self.processes.append(process)
        for line in process.stdout:  # "listening on HOST:PORT as NAME"
            if line.startswith("listening on "):
                self.ports[name] = int(line.split()[2].rsplit(":", 1)[1])
                return
        sys.exit(f"{name} ended before it listened")

    def start_instance(self, name: str, role: str) -> None:
        options = {"kv_connector": "NixlConnector", "kv_role": role, "engine_id": name,
                   "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS}}
        self.start(name, "serve", "--kv-transfer-config", json.dumps(options))

    def start_all(self) -> None:
        for name in ("P1", "P2"):
            self.start_instance(name, "kv_producer")
        for name in ("D1", "D2"):
            self.start_instance(name, "kv_consumer")
        url = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self.start("router", "route", "--prefill", url["P1"], "--prefill", url["P2"],
                   "--decode", url["D1"], "--decode", url["D2"])
        wait_until("the router to know its instances",
                   lambda: is_well(self.ports["router"], "/health/ready", unwanted="unprobed"))

    def start_prometheus(self, program: str, folder: str) -> int:
        """Runs it by the example's configuration, with the addresses and the pace of this check."""
        config = CONFIG.read_text()
        for example, name in (("8100", "P1"), ("8101", "P2"), ("8200", "D1"), ("8201", "D2"),
                              ("8000", "router")):
            config = config.replace(f'"127.0.0.1:{example}"', f'"127.0.0.1:{self.ports[name]}"')
        config = re.sub(r"_interval: \w+", f"_interval: {SCRAPE_SECONDS}s", config)
        config = config.replace("- alerts.yml", f"- {RULES}")
        path = pathlib.Path(folder, "prometheus.yml")
        path.write_text(config)
        log = open(pathlib.Path(folder, "log"), "w+", encoding="utf-8")
        self.processes.append(subprocess.Popen(
            [program, f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
             "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log))

        def listening() -> re.Match | None:
            return re.search(r"Listening on\" address=127\.0\.0\.1:(\d+)",
                             pathlib.Path(log.name).read_text())
        port = int(wait_until("Prometheus to listen", listening)[1])
        wait_until("Prometheus to be ready", lambda: is_well(port, "/-/ready"))
        return port


def wait_until(what: str, condition):
    end = time.monotonic() + LIMIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit(f"waited {LIMIT_SECONDS} s for {what}")
        time.sleep(0.1)
    return value


class Client(threading.Thread):
    """Sends requests through the router, and now and then a prefill that nobody reads."""

    def __init__(self, stack: Stack, number: int) -> None:
        super().__init__()
        self.ports = stack.ports
        self.number = number
        self.stop = threading.Event()
        self.answers = 0
        self.failure: OSError | None = None

    def run(self) -> None:
        try:
            while not self.stop.wait(0.02):
                self.send(f"Request {self.answers} of client {self.number}: "
                          + "all work and no play " * (self.answers % 40))
                self.answers += 1
        except OSError as failure:  # urllib's are
            self.failure = failure

    def send(self, prompt: str) -> None:
        ask(self.ports["router"], "/v1/completions", {"prompt": prompt, "max_tokens": 24})
        if self.answers % 20 == 1:
            ask(self.ports["P1"], "/v1/completions",
                {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})


def samples(port: int, query: str) -> list:
    answer = json.loads(ask(port, "/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    return answer["data"]["result"]


def check_scrape(tool: str, name: str, scrape: str):
    _, words = promtool(tool, "check", "metrics", stdin=scrape)
    for line in words.splitlines():
        if not COLON.fullmatch(line):
            yield f"promtool check metrics, of {name}: {line}"
    missing = set(families()) - {n for n in families() if f"# TYPE {n} " in scrape}
    here = {n for n in missing if n.startswith("kvlease_route_") == (name == "router")}
    for family in sorted(here):
        yield f"{name} does not tell {family}, which docs/metrics.md lists"


def check_dashboard(port: int):
    """Every query has an answer. Prints those whose answers are no numbers, for want of events."""
    numberless = []
    for title, query in queries():
        query = query.replace("$__rate_interval", f"{10 * SCRAPE_SECONDS}s").replace("$instance", ".*")
        try:
            found = samples(port, query)
        except urllib.error.HTTPError as refusal:
            yield f"panel {title}: {query}: {refusal.read().decode()}"
            continue
        if not found:
            yield f"panel {title}: no series answers {query}"
        elif all(sample["value"][1] == "NaN" for sample in found):
            numberless.append(f"{title}: {query}")
    if numberless:
        print("no numbers, for nothing happened there:", *numberless, sep="\n  ")


def check_rules_at_work(port: int):
    """Each alert can be evaluated, and compares series that are there and that match."""
    groups = json.loads(ask(port, "/api/v1/rules"))["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        if rule["health"] != "ok":
            yield f"Prometheus cannot evaluate {rule['name']}: {rule.get('lastError', rule['health'])}"
        elif not samples(port, re.sub("(==|>)", r"\1 bool", rule["query"])):  # 0 or 1, not nothing
            yield f"alert {rule['name']}: no series answers {rule['query']}"


def check_at_work(kvlease: str, tool: str, prometheus: str):
    with tempfile.TemporaryDirectory() as folder, Stack(kvlease) as stack:
        stack.start_all()
        port = stack.start_prometheus(prometheus, folder)
        clients = [Client(stack, number) for number in range(4)]
        for client in clients:
            client.start()
        try:
            wait_until("leases to expire under Prometheus' eyes", lambda: any(
                float(sample["value"][1]) > 0 for sample in
                samples(port, "rate(kvlease_dead_block_seconds_total[10s]) > 0")))
            wait_until("ten scrapes", lambda: all(float(sample["value"][1]) >= 10 for sample in
                                                  samples(port, "sum_over_time(up[1h])")))
            yield from check_dashboard(port)
            yield from check_rules_at_work(port)
        finally:
            for client in clients:
                client.stop.set()
            for client in clients:
                client.join()
        yield from (f"client {client.number}: {client.failure}" for client in clients
                    if client.failure or client.answers == 0)
        for name, instance in stack.ports.items():
            yield from check_scrape(tool, name, ask(instance, "/metrics"))


def main() -> int:
    kvlease, tool, prometheus = sys.argv[1:]
    findings = list(check_at_rest(tool)) + list(check_at_work(kvlease, tool, prometheus))
    print("\n".join(findings or [f"{len(families())} metrics, {len(queries())} queries of the dashboard "
                                 f"and the alerts hold"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
