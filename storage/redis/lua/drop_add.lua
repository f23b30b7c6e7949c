#!lua
-- limit objects -> {new objects, objects that wait already, objects without room}. Queues objects for the keeper.
local key, new, known, refused = P .. 'drops:events', 0, 0, 0
for _, object in ipairs(args.objects) do
  if redis.call('ZSCORE', key, object) then
    known = known + 1
  elseif redis.call('ZCARD', key) >= tonumber(args.limit) then
    refused = refused + 1
  else
    redis.call('ZADD', key, int(now_us()), object)
    new = new + 1
  end
end
return { new, known, refused }
