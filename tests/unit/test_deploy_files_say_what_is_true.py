"""What stands in deploy/ is held to the program: the unit verifies and is closed, the example is a
configuration, the container starts an existing command, and every metric that a rule or a panel
names is one that `/metrics` has.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from radix.cli import _parser
from radix.service.config import OPTIONS, Address, read_config
from radix.service.metrics import COUNTERS, GAUGES, exposition
from radix.service.status import Status

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bradix_[a-z_]+\b")


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unit, with a program that is there."""
    program = str(Path(sys.executable).parent / "radix")
    text = (DEPLOY / "radix.service").read_text()
    assert "ExecStart=/usr/local/bin/radix serve" in text
    path = tmp_path_factory.mktemp("unit") / "radix.service"
    path.write_text(text.replace("/usr/local/bin/radix", program))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze; make deps installs it")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def test_the_unit_verifies(unit: Path, tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
    broken = tmp_path / "radix.service"
    broken.write_text(unit.read_text().replace("NoNewPrivileges=yes", "NoNewPrivilege=yes"))
    assert "Unknown key" in analyze("verify", "--man=no", str(broken)).stderr


def test_the_unit_is_closed(unit: Path) -> None:
    """The exposure that systemd reckons is at most 2 of 10."""
    done = analyze("security", "--offline=true", "--threshold=20", str(unit))
    assert done.returncode == 0, done.stdout
    assert analyze("security", "--offline=true", "--threshold=1", str(unit)).returncode != 0


def test_the_unit_gives_clients_time_to_end() -> None:
    text = (DEPLOY / "radix.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert float(seconds) > read_config().limits.drain_s
    example = read_config(DEPLOY / "radix.toml")
    (runtime, state) = re.findall(r"^(?:Runtime|State)Directory=(\w+)$", text, re.M)
    assert example.socket is not None and example.data is not None
    assert str(example.socket.parent) == f"/run/{runtime}"
    assert str(example.data) == f"/var/lib/{state}"


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    config = read_config(DEPLOY / "radix.toml")
    assert config.host_bytes == 64 << 30 and config.socket_mode == 0o660
    assert [tenant.name for tenant in config.tenants] == ["engines"]
    whole = re.sub(r"^# (?=\[|[a-z_]+ = )", "", (DEPLOY / "radix.toml").read_text(), flags=re.M)
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    file = tmp_path / "radix.toml"
    file.write_text(whole.replace("/etc/radix/other.secret", str(secret)))
    other = read_config(file).tenants[1]
    assert (other.namespaces, other.quota_bytes) == (("other/",), 16 << 30)


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a container file, continued lines joined."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def test_the_container_copies_what_is_there_and_starts_what_exists() -> None:
    found = list(steps((DEPLOY / "Containerfile").read_text()))
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK"}
    assert {name for name, _ in found} <= known | {"ENTRYPOINT", "CMD"}
    for name, rest in found:
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    (entry,) = [json.loads(rest) for name, rest in found if name == "ENTRYPOINT"]
    (command,) = [json.loads(rest) for name, rest in found if name == "CMD"]
    assert entry == ["radix"]
    options = vars(_parser().parse_args(command))
    flags = {each.key: options[each.key] for each in OPTIONS if options.get(each.key) is not None}
    config = read_config(flags=flags)
    assert config.admin == Address("127.0.0.1", 9470) and str(config.data) == "/data"
    assert [rest for name, rest in found if name == "USER"] == ["radix"]  # never root
    (health,) = [rest for name, rest in found if name == "HEALTHCHECK"]
    assert f"http://{config.admin}/healthz" in health


def queries(tree: Any) -> Iterator[str]:
    """Every query of a dashboard."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from queries(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from queries(value)


def known_metrics() -> set[str]:
    """What `/metrics` declares, of a service that has done nothing yet."""
    status = Status("0", "0", 1, "running", 0.0, 0.0, {}, 0, (), (), {})
    text = exposition(lambda: status).decode()
    return set(re.findall(r"^# TYPE (\w+) ", text, re.M))


def faults_of(query: str) -> list[str]:
    """What is wrong with a query: names that nobody tells, brackets that do not close."""
    metrics = known_metrics()
    used = [name for name in METRIC.findall(query) if name != "radix_"]
    faults = [name for name in used if name not in metrics]
    labels = {"instance", "job", "le"}
    for name in used:
        labels |= {*GAUGES.get(name, ("", ()))[1]}
        labels |= {*COUNTERS.get(name.removesuffix("_total"), ("", ()))[1]}
    grouped = re.findall(r"\b(?:by|on|without) \(([^)]*)\)", query)
    matched = re.findall(r"[{,]\s*(\w+)\s*[=!]~?", query)
    asked = {label.strip() for part in grouped for label in part.split(",") if label.strip()}
    faults += sorted((asked | set(matched)) - labels)
    faults += [pair for pair in ("()", "{}", "[]") if query.count(pair[0]) != query.count(pair[1])]
    return faults


def test_every_rule_asks_for_what_is_told() -> None:
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "action"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert METRIC.search(rule["expr"]) or rule["expr"].startswith("up")
        assert faults_of(rule["expr"]) == [], rule["alert"]
    actions = " ".join(rule["annotations"]["action"] for rule in rules)
    assert set(re.findall(r"\bradix ([a-z]+)\b", actions)) <= {"doctor", "inspect", "explain"}


def test_each_rule_has_a_case_that_fires_it_and_one_that_does_not() -> None:
    """The cases that promtool runs (deploy/alerts.test.yml; Debian's prometheus, of a hundred MB,
    has it, and is not installed for this): over metrics that there are, each rule in both.
    """
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    cases = yaml.safe_load((DEPLOY / "alerts.test.yml").read_text())
    assert cases["rule_files"] == ["alerts.yml"]
    quiet, loud = cases["tests"]
    for test in (quiet, loud):
        told = {case["alertname"]: case for case in test["alert_rule_test"]}
        assert [*told] == [rule["alert"] for rule in rules]
        for series in test["input_series"]:
            assert faults_of(series["series"]) == [], series
    for rule, silent, fires in zip(
        rules, quiet["alert_rule_test"], loud["alert_rule_test"], strict=True
    ):
        assert "exp_alerts" not in silent
        (alert,) = fires["exp_alerts"]
        assert alert["exp_labels"]["severity"] == rule["labels"]["severity"]
        assert alert["exp_annotations"]["action"] == rule["annotations"]["action"]


def test_every_panel_asks_for_what_is_told() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found = list(queries(dashboard))
    assert len(found) >= 18
    for query in found:
        if query != "prometheus":
            plain = query.replace("[$__rate_interval]", "[5m]").replace("$instance", "x")
            assert faults_of(re.sub(r"label_values\((.*), \w+\)", r"\1", plain)) == [], query
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    for number, (x, y, w, h) in enumerate(places):
        assert x + w <= 24
        for a, b, c, d in places[:number]:
            assert x >= a + c or a >= x + w or y >= b + d or b >= y + h, "panels overlap"


def test_the_check_of_queries_sees_what_is_wrong() -> None:
    assert faults_of("rate(radix_hits_total[5m])") == []
    assert faults_of("radix_hit_total") == ["radix_hit_total"]
    assert faults_of("sum by (shop) (radix_connections)") == ["shop"]
    assert faults_of('radix_connections{tenant="a"}') == ["tenant"]
    assert faults_of("sum(radix_connections") == ["()"]
