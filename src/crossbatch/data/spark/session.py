"""The Spark session of a preparation: the one that `spark-submit` configured, or a local one."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has its Java already


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield the running session, or one of our own that ends with the body.

    Raises:
        ConfigError: If pyspark, what its Arrow functions need, or Java is missing.
    """
    missing = [name for name in ("pyspark", "pandas", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the engine spark needs {missing[0]}, which is not installed: "
            "pip install 'crossbatch[spark]'"
        )
    if not (SUBMITTED in os.environ or os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError(
            "the engine spark needs Java 17 or newer, and no java was found: install a JRE "
            "(Debian: default-jre-headless) or set JAVA_HOME"
        )
    from pyspark.sql import SparkSession

    if SUBMITTED not in os.environ:  # workers on this machine need what is installed here
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    ours = SparkSession.builder.appName("crossbatch prepare")
    session = running or ours.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        yield session
    finally:
        if running is None:
            session.stop()
