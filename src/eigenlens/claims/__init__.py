"""The paper's claims as an executable table: what was claimed, what is measured, and a verdict."""
