#!lua
-- tenant digest id kept_us -> ok. Says which job had a result; the latest one does, for as long as it is kept.
redis.call('SET', tkey(ARGV[1], 'result:' .. ARGV[2]), ARGV[3], 'PX', int(ARGV[4] / 1000))
return 'ok'
