#!lua flags=no-writes
-- tenant digest -> the id of the latest job that had this result, or false.
return redis.call('GET', tkey(ARGV[1], 'result:' .. ARGV[2]))
