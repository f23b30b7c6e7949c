"""The keeper: leases, retention, webhooks, bucket drop-in, batches and recovery, in one process beside the workers."""
