"""What every figure shows: tidy columns from result objects, a title, a caption and alt text.

Nothing here draws. The page (plotly) and the paper figures (matplotlib) draw the same columns, so
they cannot disagree with each other or with the tables.
"""
