#!lua flags=allow-oom
-- tenant delivery try outcome(delivered|failed|pending) delay_us note(JSON) -> ok | stale
-- Writes the result of one try. A result that comes after a later try began changes nothing.
local row, now = table_of(redis.call('HGETALL', rowkey(args.tenant, args.delivery))), now_us()
local try = args.delivery .. ':' .. args.try
redis.call('ZREM', tkey(args.tenant, 'sending'), try)
if row.id then
  local receiver = receiver_of(row)
  if redis.call('ZREM', receiver_key(row.tenant, receiver, 'busy'), try) == 1 then
    heed(row.tenant, receiver, args.outcome == 'delivered', now)
  end
end
if row.tries ~= args.try or row.state ~= 'pending' then return 'stale' end
redis.call('HINCRBY', P .. 'counts:tries', args.outcome == 'pending' and 'retried' or args.outcome, 1)
local name = row.tenant .. '/' .. row.id
if args.outcome == 'pending' then redis.call('ZADD', P .. 'outbox', int(now + args.delay_us), name) end
conclude(row, args.outcome, args.note, true, now)
if row.job == '' then redis.call('EXPIRE', rowkey(row.tenant, row.id), 86400) end
return 'ok'
