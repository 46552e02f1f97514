"""Figures as plotly draws them, made from the columns of `eigenlens.report.panels`."""
