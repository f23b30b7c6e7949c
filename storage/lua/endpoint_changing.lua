#!lua flags=no-writes
-- age_us limit -> {T/ENDPOINT/NONCE...} of changes that began so long ago
return redis.call('ZRANGEBYSCORE', P .. 'endpoints:changing', '-inf', int(now_us() - ARGV[1]), 'LIMIT', 0, ARGV[2])
