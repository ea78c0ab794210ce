"""The daemon's log is JSON, whatever is in it."""

import io
import json
import logging

import pytest

from nvhook.kubelet import json_log


@pytest.fixture
def output():
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level, json_log.LOG.level
    json_log.configure("info", stream)
    yield stream
    root.handlers[:], level, own = before
    root.setLevel(level)
    json_log.LOG.setLevel(own)


def test_a_line_is_one_object_with_its_fields(output: io.StringIO) -> None:
    json_log.LOG.warning('odd "text"\n\x1b[1m', extra=json_log.fields(uuid="GPU-1", paths={1}))
    (line,) = output.getvalue().splitlines()
    content = json.loads(line)
    assert content["msg"] == 'odd "text"\n\x1b[1m'
    assert (content["level"], content["uuid"], content["paths"]) == ("warning", "GPU-1", "{1}")
    assert content["time"].endswith("Z")


def test_what_is_below_the_level_is_not_written(output: io.StringIO) -> None:
    json_log.LOG.debug("no")
    logging.getLogger("grpc").info("no")
    json_log.LOG.info("yes")
    assert [json.loads(line)["msg"] for line in output.getvalue().splitlines()] == ["yes"]


def test_what_libraries_report_is_json_too(output: io.StringIO) -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        logging.getLogger("grpc._cython").exception("unexpected")
    content = json.loads(output.getvalue())
    assert content["logger"] == "grpc._cython"
    assert "two\nlines" in content["traceback"]
