"""The pages that claims are written into: checks, tables, plots, and the records they are made of."""
