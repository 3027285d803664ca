"""Tests of docs/deploy: units, an image, compose files and manifests."""
