"""A data set is whole or absent, whatever happens on the way."""

import hashlib
import signal
import subprocess
import sys
import textwrap

import pytest

from nupi.paper.data import fetch
from nupi.paper.data.fetch import DataUnavailableError, Source, SourceError

CONTENT = b"some rows\n"
FILES = {"rows.csv": hashlib.sha256(CONTENT).hexdigest()}
ADVICE = "Ask a friend."


def gives(content, asked=None, name="good"):
    def fill(folder):
        if asked is not None:
            asked.append(name)
        (folder / "rows.csv").write_bytes(content)

    return Source(name, fill)


def fails(error, name="bad"):
    def fill(folder):
        (folder / "rows.csv").write_bytes(b"half")
        raise error

    return Source(name, fill)


def obtain(cache, *sources, **options):
    return fetch.obtain("toy", FILES, sources, advice=ADVICE, cache=cache, **options)


def test_the_first_source_with_the_right_hash_wins(tmp_path):
    asked = []
    sources = (
        fails(SourceError("closed on Mondays")),
        gives(b"other rows\n", asked, "wrong"),
        gives(CONTENT, asked, "right"),
        gives(CONTENT, asked, "never"),
    )
    home = obtain(tmp_path, *sources)
    assert (home / "rows.csv").read_bytes() == CONTENT
    assert asked == ["wrong", "right"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_once_cached_no_source_is_asked(tmp_path):
    obtain(tmp_path, gives(CONTENT))
    assert obtain(tmp_path, fails(OSError("no network"))) == tmp_path / "toy"
    assert obtain(tmp_path) == tmp_path / "toy"


def test_a_damaged_cache_is_fetched_again(tmp_path):
    home = obtain(tmp_path, gives(CONTENT))
    (home / "rows.csv").write_bytes(CONTENT[:-1])
    assert (obtain(tmp_path, gives(CONTENT)) / "rows.csv").read_bytes() == CONTENT


def test_refresh_asks_again_and_keeps_the_old_if_that_fails(tmp_path):
    obtain(tmp_path, gives(CONTENT))
    asked = []
    obtain(tmp_path, gives(CONTENT, asked), refresh=True)
    assert asked == ["good"]
    with pytest.raises(DataUnavailableError):
        obtain(tmp_path, fails(OSError("gone")), refresh=True)
    assert (obtain(tmp_path) / "rows.csv").read_bytes() == CONTENT


def test_when_nothing_can_be_had_the_message_says_what_to_do(tmp_path):
    with pytest.raises(DataUnavailableError) as raised:
        obtain(tmp_path, fails(OSError("name not known"), "host"), gives(b"", name="mirror"))
    message = str(raised.value)
    assert "'toy' could not be had" in message
    assert "host: name not known" in message
    assert "mirror: rows.csv has sha256" in message
    assert message.endswith(ADVICE)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_download_leaves_nothing_that_could_be_taken_for_data(tmp_path):
    script = """
        import sys, time
        from pathlib import Path
        from nupi.paper.data import fetch

        def fill(folder):
            (folder / "rows.csv").write_bytes(b"some")
            print("half way", flush=True)
            time.sleep(60)

        fetch.obtain("toy", {"rows.csv": "0" * 64}, [fetch.Source("slow", fill)], advice="",
                     cache=Path(sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half way\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "toy").exists()
    assert (obtain(tmp_path, gives(CONTENT)) / "rows.csv").read_bytes() == CONTENT


def test_what_a_kill_left_long_ago_is_swept(tmp_path, monkeypatch):
    (tmp_path / ".toy-abc" / "toy").mkdir(parents=True)
    obtain(tmp_path, gives(CONTENT))
    assert (tmp_path / ".toy-abc").exists()  # it may be a download still under way
    monkeypatch.setattr(fetch, "LITTER_SECONDS", -1)
    obtain(tmp_path, gives(CONTENT), refresh=True)
    assert not (tmp_path / ".toy-abc").exists()


def client(code):
    return [sys.executable, "-c", code]


def test_a_client_that_fails_is_quoted(tmp_path):
    with pytest.raises(SourceError, match="'no-such-client' is not installed"):
        fetch.from_client(["no-such-client"], "*", "", tmp_path)
    code = "import sys; print('no matching version', file=sys.stderr); sys.exit(3)"
    with pytest.raises(SourceError, match="exited with 3: no matching version"):
        fetch.from_client(client(code), "*", "", tmp_path)
    with pytest.raises(SourceError, match=r"left 0 files like \*.tgz"):
        fetch.from_client(client("pass"), "*.tgz", "", tmp_path)


def test_a_client_that_gives_another_archive_is_refused(tmp_path):
    code = "open('a.tgz', 'wb').write(b'some rows\\n')"
    assert fetch.from_client(client(code), "*.tgz", FILES["rows.csv"], tmp_path) == tmp_path / "a.tgz"
    with pytest.raises(SourceError, match=r"a\.tgz has sha256"):
        fetch.from_client(client(code), "*.tgz", "0" * 64, tmp_path)


def test_only_secure_addresses_are_read(tmp_path):
    with pytest.raises(ValueError, match="must start with https"):
        fetch.download((tmp_path / "a").as_uri(), tmp_path / "b")


def test_the_cache_is_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("NUPI_CACHE", str(tmp_path / "own"))
    assert fetch.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("NUPI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "nupi"


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(DataUnavailableError, match=r"cannot be kept in .*file.*Set NUPI_CACHE"):
        obtain(blocked / "cache", gives(CONTENT))
