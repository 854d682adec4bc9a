"""rheonomic."""
