"""The HTML page: `write_report` and what it is assembled from."""

from __future__ import annotations

from eigenlens.report.page.write import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
