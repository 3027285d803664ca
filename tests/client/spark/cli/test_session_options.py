"""Commands that start Spark: its settings, and what of its failures is printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from databus.client.spark import session
from databus.client.spark.cli import session_options
from databus.client.spark.cli.spark import spark as group


def test_master_and_settings_of_the_command_line_reach_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, str] = {}

    class RefusedError(Exception):
        pass

    def take(name: str, settings: Mapping[str, str]) -> None:
        found.update(settings)
        raise RefusedError

    monkeypatch.setattr(session_options, "job_session", take)
    monkeypatch.setattr(session_options, "set_up_logs", lambda _: None)
    conf = ["--conf", "spark.executor.memory=4g", "--conf", "spark.driver.extraJavaOptions=-Xss9m"]
    done = CliRunner().invoke(
        group,
        ["load", "shop.orders", "delta:x", "--bootstrap", "http://b", *conf],
        env={"SPARK_MASTER": "spark://there:7077"},
    )
    assert isinstance(done.exception, RefusedError)
    assert found["spark.master"] == "spark://there:7077"
    assert found["spark.executor.memory"] == "4g"
    options = found["spark.driver.extraJavaOptions"]
    assert options.startswith("-Xss9m -Dlog4j2.configurationFile=file:")


def test_a_setting_that_is_not_one_of_spark_is_refused() -> None:
    given = ["load", "shop.orders", "delta:x", "--conf", "executor.memory=4g"]
    done = CliRunner().invoke(group, given)
    assert done.exit_code == 2
    assert "--conf executor.memory=4g: must be spark.…=VALUE" in done.output


def test_the_file_of_defaults_is_added_to_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\nspark.driver.extraJavaOptions  -Da=b -Xmx3g\nspark.master=local[3]\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    known = session._defaults()
    assert known == {
        "spark.driver.extraJavaOptions": "-Da=b -Xmx3g",
        "spark.master": "local[3]",
    }
    assert session._with_stack(known["spark.driver.extraJavaOptions"]) == "-Xss8m -Da=b -Xmx3g"
    assert session._with_stack("-Xss16m") == "-Xss16m"
