#!lua flags=no-writes
-- limit -> T/ID of batches that are not over, the oldest first
return redis.call('ZRANGE', P .. 'batches', 0, ARGV[1] - 1)
