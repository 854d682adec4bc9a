"""Identification."""
