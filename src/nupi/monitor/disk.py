"""A record on disk, of bounded size: a run appends to it, and it can be read at any time.

The file is a line with the format's name, then frames: four letters, the length in bytes, a checksum, the content.

| frame  | content                                                                            |
| ------ | ---------------------------------------------------------------------------------- |
| `HEAD` | JSON: the version, the columns, what was run                                       |
| `SNAP` | a whole record, as `torch.save` writes it; replaces all frames before it           |
| `GAIN` | JSON: a change of gains                                                            |
| `ROWS` | rows of float64, the step first; of a file that was cut off, whole rows are read   |
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from nupi.monitor.columns import Columns
from nupi.monitor.record import GainHistory, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "record.nupi"
VERSION = 2  # of the file format; the record in it has a version of its own
_MAGIC = b"nupi record 2\n"
_MAGIC_OF_1 = b"nupi record\n"
_FRAME = struct.Struct("<4sQI")
_MOST_STEPS = 2.0**53  # the largest number up to which float64 has all integers
_REWRITE = 2**24  # bytes; a file that has grown by more than this and by four snapshots is rewritten


class Writer:
    """Writes a growing record to `folder`. Any method may raise OSError, for example if the disk is full.

    If the folder has a record of another run, that is kept under another name.

    The file is a descriptor and not a Python file, because the garbage collector may close a Python file before the
    monitor has written what waits.
    """

    _file: int | None = None

    def __init__(self, folder: str | os.PathLike[str], record: Record) -> None:
        self.path = Path(folder) / FILE
        self._record = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if len(record) == 0:
            _put_aside(self.path)
        self._start()

    def add(self, rows: torch.Tensor, gains: Sequence[tuple[int, int, dict[str, float]]] = ()) -> None:
        """Append rows, and changes of gains as (number of the history in the record, step, gains)."""
        for number, step, values in gains:
            history = self._record.gains[number]
            self._frame(b"GAIN", _json([number, history.names, history.kind, step, values]))
        if len(rows):
            self._frame(b"ROWS", _bytes(rows))
        if self._grown > max(_REWRITE, 4 * self._snapshot):
            self.close()
            self._start()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _start(self) -> None:
        """Write a new file with the whole record, and replace the old one atomically."""
        self._grown = 0
        new = self.path.with_suffix(".new")
        self._file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
        self._write(_MAGIC)
        head = {"version": VERSION, "columns": self._record.columns.described()}
        self._frame(b"HEAD", _json({**head, "keep": self._record.keep, "info": self._record.info}))
        if len(self._record):
            buffer = io.BytesIO()
            torch.save(self._record.state_dict(), buffer)
            self._frame(b"SNAP", buffer.getvalue())
        self._snapshot, self._grown = self._grown, 0
        new.replace(self.path)

    def _frame(self, tag: bytes, content: bytes) -> None:
        self._write(_FRAME.pack(tag, len(content), zlib.crc32(content)) + content)
        self._grown += len(content)

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        left = memoryview(content)
        while left:
            left = left[os.write(self._file, left) :]


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record from a folder or a file, up to its last complete step.

    Raises:
        FileNotFoundError: there is no record.
        ValueError: the file is not a record, has another version, or is damaged.

    Example:
        >>> import tempfile
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     monitor = nupi.Monitor(lagrangian, path=folder)
        ...     lagrangian.ascend(dual, {"norm": torch.tensor(2.0)})
        ...     monitor.close()
        ...     record = nupi.monitor.read(folder)
        >>> len(record), record.gains_of("norm").latest["ki"]
        (1, 0.1)
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    if not file.exists():
        raise FileNotFoundError(
            f"{path}: there is no record here; a run writes one with nupi.Monitor(lagrangian, path=...)"
        )
    content = memoryview(file.read_bytes())
    if bytes(content[: len(_MAGIC_OF_1)]) == _MAGIC_OF_1:
        _refuse_version(1)
    if bytes(content[: len(_MAGIC)]) != _MAGIC:
        raise ValueError(f"{file} is not a record of nupi")
    try:
        record = _read_frames(content)
    except _DamagedError as damage:
        raise ValueError(
            f"{file} is damaged: byte {damage}, or one after it, has changed; use a copy of the file if there is one"
        ) from None
    if record is None:
        raise ValueError(f"{file} has no step yet; try again when the run has made a step")
    return record


class _DamagedError(Exception):
    """The checksum of a frame does not match its content."""


def _read_frames(content: memoryview) -> Record | None:
    record: Record | None = None
    at = len(_MAGIC)
    while at + _FRAME.size <= len(content):
        begun = at
        tag, length, checksum = _FRAME.unpack_from(content, at)
        at += _FRAME.size
        frame = content[at : at + length]
        at += length
        if tag == bytes(4):
            break  # zeros after a power cut
        cut_off = len(frame) < length
        if not cut_off and zlib.crc32(frame) != checksum and not _ends_in_zeros(tag, frame):
            raise _DamagedError(begun)
        if tag != b"ROWS" and cut_off:
            break
        if tag == b"HEAD":
            record = _from_head(json.loads(bytes(frame)))
        elif record is None:
            break
        elif tag == b"SNAP":
            record = Record.from_state(torch.load(io.BytesIO(bytes(frame)), weights_only=True))
        elif tag == b"GAIN":
            _add_gains(record, *json.loads(bytes(frame)))
        elif tag == b"ROWS":
            record.add(_rows(frame, record))
        else:
            raise _DamagedError(begun)
    return record


def _ends_in_zeros(tag: bytes, frame: memoryview) -> bool:
    """Whether a power cut has replaced the last of some rows by zeros; the rows before can be read."""
    return tag == b"ROWS" and len(frame) >= 16 and bytes(frame[-16:]) == bytes(16)


def _refuse_version(version: object) -> NoReturn:
    raise ValueError(
        f"this record has version {version!r}, but this nupi reads version {VERSION}; "
        "open it with the nupi that wrote it"
    )


def _from_head(head: dict[str, Any]) -> Record:
    if head.get("version") != VERSION:
        _refuse_version(head.get("version"))
    return Record(Columns.from_described(head["columns"]), head["keep"], head["info"])


def _add_gains(
    record: Record, number: int, names: list[str], kind: str, step: int, gains: dict[str, float]
) -> None:
    if number == len(record.gains):
        record.gains.append(GainHistory(names, kind, []))
    record.gains[number].add(step, gains)


def _rows(frame: memoryview, record: Record) -> torch.Tensor:
    """The whole rows of a frame while their steps increase: after a power cut a file may end in zeros."""
    width = record.columns.count + 1
    whole = len(frame) // (8 * width)
    if not whole:
        return torch.empty(0, width, dtype=torch.float64)
    rows = torch.frombuffer(bytearray(frame[: 8 * width * whole]), dtype=torch.float64).reshape(whole, width)
    last = torch.cat([torch.tensor([float(record.last_step)], dtype=torch.float64), rows[:-1, 0]])
    counts = (rows[:, 0] > last) & (rows[:, 0] < _MOST_STEPS)
    good = int(counts.long().cumprod(0).sum())
    return rows[:good]


def _bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, without numpy, which need not be installed."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _put_aside(path: Path) -> None:
    if not path.exists():
        return
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.replace(kept)
