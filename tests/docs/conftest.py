"""The parts of these tests stand beside them: their folder joins the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
