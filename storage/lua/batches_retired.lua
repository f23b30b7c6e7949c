#!lua flags=no-writes
-- limit -> T/ID of batches whose retention is over, or that were deleted
return redis.call('ZRANGEBYSCORE', P .. 'batches:finished', '-inf', int(now_us()), 'LIMIT', 0, tonumber(ARGV[1]))
