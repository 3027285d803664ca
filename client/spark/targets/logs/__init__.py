"""The commit log as tables keep it that can be set back to an earlier version."""
