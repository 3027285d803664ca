"""Consumption of changes in foreachBatch: order, application to targets, restarts."""
