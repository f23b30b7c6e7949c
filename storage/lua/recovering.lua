#!lua flags=allow-oom
-- who begin(1 or 0) -> 1. The end of a recovery counts only if Redis was not emptied, nor another one begun, meanwhile.
if ARGV[2] == '1' then
  redis.call('SET', P .. 'recovering', ARGV[1], 'PX', 86400000)  -- of a keeper that dies
  return 1
end
if redis.call('GET', P .. 'recovering') ~= ARGV[1] then return 0 end
redis.call('DEL', P .. 'recovering', P .. 'unannounced')
redis.call('SET', P .. 'alive', ARGV[1])
return 1
