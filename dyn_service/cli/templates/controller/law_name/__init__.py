"""The controller law_name, for dyn_service."""
