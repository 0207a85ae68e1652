from __future__ import annotations


def write_report(record, path):
    pass
