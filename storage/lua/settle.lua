#!lua flags=allow-oom
-- tenant delivery try outcome(delivered|failed|pending) delay_us note(JSON) -> ok | stale
-- The result of one try. A try that was overtaken by a later one changes nothing.
local row, now = table_of(redis.call('HGETALL', rowkey(ARGV[1], ARGV[2]))), now_us()
local try = ARGV[2] .. ':' .. ARGV[3]
redis.call('ZREM', tkey(ARGV[1], 'sending'), try)
if row.id then
  local receiver = receiver_of(row)
  if redis.call('ZREM', receiver_key(row.tenant, receiver, 'busy'), try) == 1 then
    heed(row.tenant, receiver, ARGV[4] == 'delivered', now)
  end
end
if row.tries ~= ARGV[3] or row.state ~= 'pending' then return 'stale' end
redis.call('HINCRBY', P .. 'counts:tries', ARGV[4] == 'pending' and 'retried' or ARGV[4], 1)
local name = row.tenant .. '/' .. row.id
if ARGV[4] == 'pending' then redis.call('ZADD', P .. 'outbox', int(now + ARGV[5]), name) end
conclude(row, ARGV[4], ARGV[6], true, now)
if row.job == '' then redis.call('EXPIRE', rowkey(row.tenant, row.id), 86400) end
return 'ok'
