#!lua flags=no-writes
-- tenant id n -> the ids of the n oldest members that have a record
return redis.call('ZRANGE', bkey(ARGV[1], ARGV[2], 'jobs'), 0, ARGV[3] - 1)
