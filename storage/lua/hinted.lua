#!lua flags=no-writes
-- list -> 1 if a hint waits in it
return redis.call('EXISTS', ARGV[1])
