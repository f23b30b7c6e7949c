#!lua
-- limit object... -> {how many are new, how many wait already, how many found no room}
-- Have the keeper look at objects that events told of.
local key, new, known, refused = P .. 'drops:events', 0, 0, 0
for i = 2, #ARGV do
  if redis.call('ZSCORE', key, ARGV[i]) then
    known = known + 1
  elseif redis.call('ZCARD', key) >= tonumber(ARGV[1]) then
    refused = refused + 1
  else
    redis.call('ZADD', key, int(now_us()), ARGV[i])
    new = new + 1
  end
end
return { new, known, refused }
