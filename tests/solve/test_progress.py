import io
import time

from nupi.solve.progress import track


def test_a_loop_yields_everything_and_shows_only_what_lasts():
    stream = io.StringIO()
    assert list(track(range(3), "quick", stream=stream, terminal=True)) == [0, 1, 2]
    assert stream.getvalue() == ""
    seen = []
    for outer in track([1, 2], "outer", stream=stream, terminal=True, patience=0.02):
        for inner in track(iter([1, 2]), "inner", total=2, stream=stream, terminal=True, patience=0.02):
            time.sleep(0.13)
            seen.append((outer, inner))
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2)]
    drawn = stream.getvalue()
    assert "outer [" in drawn
    assert "inner [###############...............]  50%" in drawn
    assert drawn.endswith("\r\x1b[K")  # and it leaves nothing behind


def test_the_first_item_may_be_the_long_one_and_the_total_unknown():
    stream = io.StringIO()
    for _ in track(iter([1]), "waiting", stream=stream, terminal=True, patience=0.02):
        limit = time.monotonic() + 30
        while "waiting: 0" not in stream.getvalue() and time.monotonic() < limit:
            time.sleep(0.01)
    assert "waiting: 0" in stream.getvalue()


def test_in_a_log_a_line_now_and_then_takes_the_place_of_a_bar():
    stream = io.StringIO()  # no terminal
    for _ in track(range(3), "long work", stream=stream, heartbeat=0.05):
        time.sleep(0.06)
    assert stream.getvalue().splitlines() == [f"long work: {done} of 3" for done in (1, 2, 3)]
    quick = io.StringIO()
    assert list(track(range(3), "quick", stream=quick)) == [0, 1, 2]
    assert quick.getvalue() == ""
