"""Where the repository's folders are, for tests of all floors."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
BENCH = TESTS / "bench"
DEMOS = ROOT / "demos"
DOCS = ROOT / "docs"
