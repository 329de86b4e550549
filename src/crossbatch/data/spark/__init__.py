"""Preparation on Apache Spark, for logs that live on a cluster; see `engine`."""

from __future__ import annotations

from crossbatch.data.spark.engine import arrange

__all__ = ["arrange"]
