"""Without its library an adapter says in one sentence what to install."""

import subprocess
import sys

import pytest

ADAPTERS = {
    "lightning": ("lightning", "lightning"),
    "sentence_transformers": ("transformers", "text"),
    "huggingface": ("datasets", "hf"),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_extra_is_named(adapter):
    library, extra = ADAPTERS[adapter]
    code = f"import sys; sys.modules[{library!r}] = None; import crossbatch.adapters.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install 'crossbatch[{extra}]'" in done.stderr.splitlines()[-1]
