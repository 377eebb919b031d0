"""``python tests/bench``; see the docstring of the package."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the peers end, too
    sys.exit(main(sys.argv[1:]))
