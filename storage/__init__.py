"""The stores: jobs in Redis, objects in S3 or a folder, and the journal that keeps both in agreement."""
