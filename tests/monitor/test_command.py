"""`nupi watch` and `nupi report`, as a user runs them."""

import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import nupi
from nupi.monitor.command import app


@pytest.fixture
def folder(tmp_path):
    lagrangian = nupi.Lagrangian({"a[b]": nupi.Equality(), "many": nupi.Inequality(50)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    with nupi.Monitor(lagrangian, path=tmp_path):
        for step in range(100):
            e = torch.tensor(2.0) * 0.9**step
            lagrangian.ascend(dual, {"a[b]": e, "many": torch.full((50,), -1.0)})
    return tmp_path


def test_watch_shows_every_group_and_the_findings(folder):
    shown = CliRunner(env={"COLUMNS": "140", "LINES": "40"}).invoke(app, ["watch", str(folder), "--once"])
    assert shown.exit_code == 0, shown.output
    assert "a[b]" in shown.output  # and rich has not taken it for markup
    assert "many (50)" in shown.output
    assert "█" in shown.output
    assert "'many' is inactive" in shown.output


def test_watch_goes_on_while_a_run_writes(folder):
    """In a real terminal, until it is ended by Ctrl-C: rich draws as it goes only where somebody can see it."""
    import os
    import pty
    import select
    import signal
    import time

    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "nupi", "watch", str(folder), "--every", "0.1"]
    wide = {**os.environ, "COLUMNS": "120", "LINES": "50", "TERM": "xterm"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    watching = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, text=True, env=wide)
    signal.signal(signal.SIGINT, before)
    os.close(terminal)
    shown, end = b"", time.monotonic() + 60
    while b"many (50)" not in shown and time.monotonic() < end:
        assert watching.poll() is None, watching.stderr.read()
        if select.select([screen], [], [], 0.1)[0]:
            shown += os.read(screen, 65_536)
    watching.send_signal(signal.SIGINT)
    while watching.poll() is None and time.monotonic() < end:  # a screen that nobody reads would fill up
        if select.select([screen], [], [], 0.1)[0]:
            try:
                shown += os.read(screen, 65_536)
            except OSError:  # the other end is closed
                break
    _, error = watching.communicate(timeout=60)
    os.close(screen)
    assert watching.returncode == 0, error
    assert b"many (50)" in shown


def test_report_writes_one_file(folder):
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    page = (folder / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "100 steps" in done.output


@pytest.mark.parametrize("command", ["watch", "report"])
def test_a_folder_without_a_record_is_a_clear_error(command, tmp_path):
    failed = CliRunner().invoke(app, [command, str(tmp_path)])
    assert failed.exit_code == 2
    assert "no record here" in failed.output


@pytest.mark.parametrize(
    ("columns", "gains", "bars"), [(120, True, True), (80, False, True), (50, False, False)]
)
def test_a_narrow_screen_keeps_names_and_numbers(folder, columns, gains, bars):
    shown = CliRunner(env={"COLUMNS": str(columns), "LINES": "40"}).invoke(
        app, ["watch", str(folder), "--once"]
    )
    assert "many (50)" in shown.output
    assert "inactive │" in shown.output
    assert ("ki 0.1" in shown.output) is gains
    assert ("█" in shown.output) is bars
