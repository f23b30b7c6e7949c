"""The job store: records, queues and deliveries in Redis. Every transition is one Lua script (`lua/`)."""
