#!lua flags=allow-oom
-- n lease_us -> {{ended|events, object, score, age_us}...}. Leases the objects that are due, at most n of each kind. An
-- object comes again after its lease, unless `drop_done` removes it.
local now, rows = now_us(), {}
for _, kind in ipairs({ 'ended', 'events' }) do
  local key = P .. 'drops:' .. kind
  for _, object in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', int(now), 'LIMIT', 0, args.n)) do
    redis.call('ZADD', key, int(now + args.lease_us), object)
    redis.call('HSETNX', P .. 'drops:since', object, int(now))
    local since = redis.call('HGET', P .. 'drops:since', object)
    rows[#rows + 1] = { kind, object, redis.call('ZSCORE', key, object), now - since }
  end
end
return rows
