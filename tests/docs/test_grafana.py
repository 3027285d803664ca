"""docs/grafana: every metric and label in it is one that the daemons really have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from databus.bootstrap.service import make_service as make_pair
from databus.client import DatabusClient
from databus.client.monitoring.metrics import make_metrics as client_metrics
from databus.client.sinks.serving.metrics import make_metrics as sink_metrics
from databus.client.sinks.serving.process import SinkProcess, make_plans
from databus.client.spark.monitoring.metrics import QueryStats, make_metrics as spark_metrics
from databus.conf.loading import build_settings
from databus.conf.settings import BootstrapHttpSettings, ClientHttpSettings, HttpSettings
from databus.conf.sink_settings import SinksSettings
from databus.relay.service import make_service as make_relay
from tests.bootstrap.serving import FakeWorker, ServedStore
from tests.docs.markdown import (
    block_for,
)
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tools.repository import ROOT

GRAFANA = ROOT / "docs" / "grafana"
DASHBOARD: Any = json.loads((GRAFANA / "databus.json").read_text(encoding="utf-8"))
RULES: Any = yaml.safe_load((GRAFANA / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]

# What Prometheus itself adds, whatever is asked.
OF_PROMETHEUS = {"up": {"job", "instance"}}
TARGET_LABELS = {"job", "instance"}
WORDS = frozenset(
    {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool"}
    | {"offset", "Inf", "NaN"}
)
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPINGS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGES = re.compile(r"\[[^\]]*\]")

Exposed = Mapping[str, set[str]]


def metrics_of(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of a PromQL expression, with the labels that it is asked for."""
    text = _STRINGS.sub('""', expression)
    grouped = {name for match in _GROUPINGS.findall(text) for name in re.findall(r"\w+", match)}
    text = _RANGES.sub("", _GROUPINGS.sub("", text))
    for match in re.finditer(r"([A-Za-z_:][\w:]*)(\s*\()?(\{[^}]*\})?", text):
        name, is_function, matchers = match.groups()
        if is_function or name in WORDS or text[match.start() - 1 : match.start()].isdigit():
            continue
        if text[: match.start()].count("{") > text[: match.start()].count("}"):
            continue  # a label within braces
        yield name, grouped | set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers or ""))


def panels() -> list[Any]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = [
        v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"
    ]
    inner = [re.fullmatch(r"label_values\((.*), (\w+)\)", query) for query in variables]
    asked += [f"sum by ({found[2]}) ({found[1]})" for found in inner if found]
    assert all(inner)
    return asked + [rule["expr"] for rule in ALERTS]


def shown_by(metrics: CollectorRegistry) -> Exposed:
    """Return the labels of everything that a registry shows, by its name on `/metrics`."""
    found: dict[str, set[str]] = {}
    for family in metrics.collect():
        labels = set(getattr(family, "_labelnames", ()))
        labels |= {label for sample in family.samples for label in sample.labels}
        if family.type == "histogram":
            found |= {
                f"{family.name}{end}": labels | {"le"} for end in ("_bucket", "_sum", "_count")
            }
        else:
            found[family.name + ("_total" if family.type == "counter" else "")] = labels
    return found


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Exposed:
    """What a relay, a client, a bootstrap pair and a Spark driver really show."""
    folder = tmp_path_factory.mktemp("daemons")
    relay_and_client = _of_relay_and_client(folder / "relay")
    others = {**_of_bootstrap(folder), **_of_spark(), **_of_sinks(folder / "sinks")}
    return {**relay_and_client, **others, **OF_PROMETHEUS}


def _of_relay_and_client(folder: Path) -> Exposed:
    shop = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"], "log": {}}
    served = ServedRelay(folder, physical_sources=[shop], coordinator=f"file:{folder}")
    service = make_relay(served.relay)
    try:
        served.put(*(transaction(scn, insert(scn)) for scn in (10, 20)))
        client = DatabusClient([served.url], report_every_s=0.01)
        client.on("shop.person")(lambda event: None)
        with client:
            wait_until(lambda: "databus_client_behind_bytes" in shown_by(client_metrics(client)))
            of_client = shown_by(client_metrics(client))
            return {**of_client, **shown_by(service.metrics)}
    finally:
        served.close()
        service.stop(1.0)


def _of_bootstrap(folder: Path) -> Exposed:
    served = ServedStore(folder, FakeWorker, fill_lease_s=10.0)
    try:
        return shown_by(make_pair(served.pair).metrics)
    finally:
        served.close()


def _of_sinks(folder: Path) -> Exposed:
    sinks = [{"name": "a", "kind": "print", "sources": ["shop.orders"]}]
    raw = {"data_dir": folder, "relays": ["http://127.0.0.1:1"], "sinks": sinks}
    settings = build_settings(raw, SinksSettings)
    with closing(SinkProcess(settings, make_plans(settings))) as process:
        return shown_by(sink_metrics(process))


def _of_spark() -> Exposed:
    figures = QueryStats()
    return shown_by(spark_metrics(figures))


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_expression_asks_for_metrics_and_labels_that_there_are(
    exposed: Exposed, expression: str
) -> None:
    asked = list(metrics_of(expression))
    assert asked, expression
    for name, labels in asked:
        assert name in exposed, f"{name} of {expression}"
        known = exposed[name] | TARGET_LABELS
        assert labels <= known, f"{name} has {known}"


def test_metrics_are_found_in_expressions() -> None:
    found = dict(
        metrics_of(
            'histogram_quantile(0.5, sum by (le, query) (rate(a_bucket{job=~"x(y)"}[5m])))'
            " / on (instance) group_left b_total > 1e3 and c == 1"
        )
    )
    assert set(found) == {"a_bucket", "b_total", "c"}
    assert found["a_bucket"] == {"le", "query", "instance", "job"}


def test_legends_name_labels_that_there_are(exposed: Exposed) -> None:
    for panel in panels():
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            known = set(TARGET_LABELS)
            for name, _ in metrics_of(target["expr"]):
                known |= exposed[name]
            assert wanted <= known, panel["title"]


def test_every_metric_of_a_daemon_can_be_seen_or_is_left_out_on_purpose(exposed: Exposed) -> None:
    shown = {name for expression in expressions() for name, _ in metrics_of(expression)}
    ours = {name for name in exposed if name.startswith("databus_") and "_created" not in name}
    assert {name for name in ours - shown if not LEFT_OUT.search(name)} == set()


# Positions, of which differences are shown, and what is a part of what is shown.
LEFT_OUT = re.compile(
    r"_scn$|_(?:sum|count)$|callback_seconds$|_windows_total|_batches_total|_starts_total|_batch_id"
    r"|_batch_rows|last_batch_timestamp|in_snapshot|_pages_total|_page_bytes_total|_retries_total"
    r"|events_per_second|connection_state|client_phase|behind_seconds|owned_partitions|lease_term|relay_captures"
    r"|store_packed_bytes"
)


def test_the_dashboard_is_of_the_current_form() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"] == "databus"
    assert DASHBOARD["id"] is None
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0


def test_no_panel_lies_on_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} on {taken.get((x, y))}"
                taken[x, y] = panel["title"]


def test_every_part_of_the_system_has_a_row() -> None:
    rows = " ".join(panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row")
    assert all(part in rows for part in ("Relay", "Client", "Bootstrap", "Spark", "Sinks"))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_how_bad_it_is_and_what_to_do(rule: Any) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert len(rule["annotations"]["description"]) > 60
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))


def test_alerts_name_commands_and_paths_that_there_are() -> None:
    text = (GRAFANA / "alerts.yml").read_text(encoding="utf-8")
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for page in re.findall(r"docs/[\w/-]+\.md", text):
        assert (ROOT / page).exists(), page


def test_the_scrape_configuration_of_the_guide_has_the_jobs_of_the_alerts() -> None:
    page = ROOT / "docs" / "getting-started.md"
    scraped = yaml.safe_load(block_for(page, "write prometheus.yml").text)
    jobs = {
        one["job_name"]: one["static_configs"][0]["targets"] for one in scraped["scrape_configs"]
    }
    assert set(re.findall(r'job="([\w-]+)"', str(ALERTS))) <= set(jobs)
    ports = {
        "databus-relay": HttpSettings().port,
        "databus-bootstrap": BootstrapHttpSettings().port,
        "databus-client": ClientHttpSettings().port,
    }
    for job, port in ports.items():
        assert jobs[job] == [f"127.0.0.1:{port}"]
    assert scraped["rule_files"] == ["alerts.yml"]
