"""Kinds of violations."""
