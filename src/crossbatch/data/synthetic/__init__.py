"""Synthetic logs with known structure, of any size, generated in a stream."""

from __future__ import annotations

from crossbatch.data.synthetic.log import SynthOptions, synthetic_source, write_raw

__all__ = ["SynthOptions", "synthetic_source", "write_raw"]
