#!lua flags=allow-oom
-- kind object mark ... -> how many were taken off
-- One that was told of anew since it was taken has another mark, and stays.
local done = 0
for i = 1, #ARGV, 3 do
  local key, object = P .. 'drops:' .. ARGV[i], ARGV[i + 1]
  if redis.call('ZSCORE', key, object) == ARGV[i + 2] then
    redis.call('ZREM', key, object)
    redis.call('HDEL', P .. 'drops:since', object)
    done = done + 1
  end
end
return done
