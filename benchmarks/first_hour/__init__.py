"""A newcomer's first hour: install, type quickstart, and have every row. Imports anything."""
