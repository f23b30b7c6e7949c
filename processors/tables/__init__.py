"""The processor of tables."""
