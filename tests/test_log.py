"""Loggers, with structlog and without."""

import logging
import sys

import structlog

from hami_plugin.log import StandardLogger, logger


def test_with_structlog_a_module_logs_events_with_fields():
    with structlog.testing.capture_logs() as events:
        logger("hami_plugin.node").warning("device unhealthy", device="GPU-1")

    assert events == [{"event": "device unhealthy", "device": "GPU-1", "log_level": "warning"}]


def test_without_structlog_the_standard_library_gets_the_same_events(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "structlog", None)
    log = logger("bare")

    with caplog.at_level(logging.DEBUG):
        log.debug("looked", cards=2)
        log.bind(resource="toy.io/card").info("registered", endpoint="toy.sock")
        log.warning("refused 100%", why="no pod")
        log.error("broke", exc_info=ValueError("odd"))

    assert isinstance(log, StandardLogger)
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("bare", "DEBUG", "looked cards=2"),
        ("bare", "INFO", "registered resource='toy.io/card' endpoint='toy.sock'"),
        ("bare", "WARNING", "refused 100% why='no pod'"),
        ("bare", "ERROR", "broke"),
    ]
    assert caplog.records[3].exc_info[0] is ValueError


def test_without_structlog_an_exception_shows_its_trace(caplog):
    try:
        {}["gone"]
    except KeyError:
        StandardLogger(logging.getLogger("bare")).exception("failed", device="GPU-1")

    assert caplog.records[0].exc_info[0] is KeyError
    assert caplog.records[0].getMessage() == "failed device='GPU-1'"
