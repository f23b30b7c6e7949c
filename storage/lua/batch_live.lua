#!lua flags=no-writes
-- tenant id cursor n -> {cursor, {job id...}}: members that are not terminal. All are seen when the cursor is 0 again.
return redis.call('SSCAN', bkey(ARGV[1], ARGV[2], 'live'), ARGV[3], 'COUNT', ARGV[4])
