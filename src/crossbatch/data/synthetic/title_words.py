"""Words for synthetic titles: real ones for decoration, coined ones that carry the signal."""

from __future__ import annotations

import numpy as np

CATEGORY_NAMES = (
    "Astronomy", "Baking", "Chess", "Drawing", "Ecology", "Fishing", "Gardening", "History",
    "Illusions", "Jazz", "Knitting", "Languages", "Mountains", "Navigation", "Origami", "Poetry",
    "Quilting", "Robotics", "Sailing", "Travel", "Urbanism", "Volcanoes", "Weaving", "Zoology",
)  # fmt: skip
ADJECTIVES = (
    "quiet", "hidden", "golden", "last", "early", "little", "distant", "broken", "open", "lost",
    "northern", "silver", "endless", "simple", "second", "forgotten",
)  # fmt: skip
NOUNS = (
    "river", "garden", "letter", "house", "winter", "machine", "island", "morning", "window",
    "road", "mirror", "season", "harbour", "forest", "clock", "stranger",
)  # fmt: skip
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "eo", "ia")


def coined(count: int, salt: int = 0) -> np.ndarray:
    """Return distinct pronounceable words, the same every time.  Shape `[count]`, str."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    base = len(syllables)
    words = []
    for number in range(count):
        # an odd multiplier permutes the numbers below base**3: neighbours do not look alike
        code = (number * 1_300_021 + 7 * salt) % base**3
        parts = (syllables[code % base], syllables[code // base % base], syllables[code // base**2])
        words.append("".join(parts) + ("n", "x")[salt % 2])
    return np.array(words)
