"""What the command's exit code says, the same for every command."""

from __future__ import annotations

FAILED = 1  # something failed, or `doctor` found a problem
MISTAKE = 2  # the user can mend it: an option, a recipe, a file, a full disk
INTERRUPTED = 130  # Ctrl-C; what shells report after it
