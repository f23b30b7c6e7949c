#!lua flags=allow-oom
-- objects {{kind, object, score}...} -> number of removed objects. An object that an event has named again since
-- `drop_take` has another score, and stays.
local done = 0
for _, row in ipairs(args.objects) do
  local key, object = P .. 'drops:' .. row[1], row[2]
  if redis.call('ZSCORE', key, object) == row[3] then
    redis.call('ZREM', key, object)
    redis.call('HDEL', P .. 'drops:since', object)
    done = done + 1
  end
end
return done
