"""Files: whole or not at all, and no bit of them may change unseen."""

import pytest
import torch
from ranks import program

from nupi import files

PAYLOAD = {"theta": torch.arange(5.0), "step": 3, "names": ["a", "b"]}


def test_a_payload_comes_back_as_it_was(tmp_path):
    files.save_checked(tmp_path / "new" / "one.pt", PAYLOAD)
    found = files.load_checked(tmp_path / "new" / "one.pt")
    assert torch.equal(found.pop("theta"), PAYLOAD["theta"])
    assert found == {"step": 3, "names": ["a", "b"]}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one.pt"]


def test_every_bit_that_is_flipped_is_noticed(tmp_path):
    path = tmp_path / "one.pt"
    files.save_checked(path, PAYLOAD)
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 41):  # 41 is no multiple of 8: every bit of a byte has its turn
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(files.DamagedFileError, match=r"one\.pt is"):
            files.load_checked(path)


@pytest.mark.parametrize("length", [0, 5, 20, 40, 60, 500])
def test_a_file_that_was_cut_off_is_noticed(tmp_path, length):
    path = tmp_path / "one.pt"
    files.save_checked(path, PAYLOAD)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(files.DamagedFileError, match=r"one\.pt is (cut off|damaged)"):
        files.load_checked(path)


def test_a_file_of_somebody_else_is_named_as_such(tmp_path):
    torch.save(PAYLOAD, tmp_path / "one.pt")
    with pytest.raises(files.DamagedFileError, match="is not a file of save_checked"):
        files.load_checked(tmp_path / "one.pt")
    with pytest.raises(FileNotFoundError):
        files.load_checked(tmp_path / "two.pt")


def test_a_result_is_recalled_with_its_key_or_said_to_be_lost(tmp_path):
    path = tmp_path / "one.pt"
    assert files.recall(path) is None
    files.keep(path, "what", 7)
    assert files.recall(path) == ("what", 7)
    files.save_checked(path, [1, 2])
    with pytest.warns(RuntimeWarning, match=r"one\.pt holds no result; it is computed again"):
        assert files.recall(path) is None
    path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=r"one\.pt is cut off; it is computed again"):
        assert files.recall(path) is None


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "summary.json"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "new \ud800")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        files.write_text(tmp_path / "taken", "a file in place of a folder")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["summary.json", "taken"]


WRITER = """
from nupi import files
for turn in range(400):
    files.save_checked(path, {"key": name, "value": turn})
"""


def test_two_processes_that_write_one_file_at_once_never_spoil_it(tmp_path):
    path = tmp_path / "one.pt"
    writers = [program(WRITER, path=path, name=name) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if (found := files.recall(path)) is not None:  # a warning would be an error here
            seen.add(found.key)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert files.recall(path).value == 399
    assert seen <= {"a", "b"}
    assert [each.name for each in tmp_path.iterdir()] == ["one.pt"]


def test_digests_tell_types_shapes_and_values_apart():
    parts = [
        (),
        ("",),
        ("a",),
        ("a", "b"),
        ("ab",),
        (torch.zeros(2),),
        (torch.zeros(1, 2),),
        (torch.zeros(2, dtype=torch.int32),),
        (torch.ones(2),),
        (torch.tensor([0.0, -0.0]),),
    ]
    assert len({files.digest(*each) for each in parts}) == len(parts)
    assert files.digest("a", torch.arange(6).reshape(2, 3).T) == files.digest(
        "a", torch.tensor([[0, 3], [1, 4], [2, 5]])
    )
