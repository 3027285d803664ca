"""Answers of the API for single parts of the page: tables, bootstrap pairs."""
