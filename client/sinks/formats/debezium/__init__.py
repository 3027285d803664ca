"""Debezium's messages: the envelope, and the types of Kafka Connect in it."""
