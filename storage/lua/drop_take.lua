#!lua flags=allow-oom
-- n lease_us -> {{ended|events, object, mark, age_us}...}
-- Lend the objects that are due, at most n of each kind: who does not say `drop_done` of one lets it come again.
local now, rows = now_us(), {}
for _, kind in ipairs({ 'ended', 'events' }) do
  local key = P .. 'drops:' .. kind
  for _, object in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', int(now), 'LIMIT', 0, ARGV[1])) do
    redis.call('ZADD', key, int(now + ARGV[2]), object)
    redis.call('HSETNX', P .. 'drops:since', object, int(now))
    local since = redis.call('HGET', P .. 'drops:since', object)
    rows[#rows + 1] = { kind, object, redis.call('ZSCORE', key, object), now - since }
  end
end
return rows
