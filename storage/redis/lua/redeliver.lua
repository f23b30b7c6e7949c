#!lua flags=allow-oom
-- tenant id(optional) delivery give_up_us -> {{delivery}} | 0 unknown job | 1 gone | 2 unknown delivery | endpoint_deleted |
-- endpoint_disabled. Makes a delivery due now, settled or not, unless a try is under way.
if args.id then
  local job, missing = find(args.tenant, args.id)
  if not job then return missing end
end
local row, now = table_of(redis.call('HGETALL', rowkey(args.tenant, args.delivery))), now_us()
if not row.id or (args.id and row.job ~= args.id) then return 2 end
local why = stopped(row, row.endpoint and endpoint_of(row.tenant, row.endpoint))
if why and why ~= 'unknown' then return why end
if row.state ~= 'pending' or tonumber(row.leased_us or '0') <= now then
  redis.call('HSET', rowkey(row.tenant, row.id), 'state', 'pending', 'until_us', int(now + args.give_up_us))
  redis.call('ZREM', tkey(row.tenant, 'deliveries:dead'), row.id)
  hasten(row, now)
  local job = load(row.tenant, row.job)
  if job and not passing(row.event) then
    if job.delivery ~= 'pending' then write(job, { delivery = 'pending' }) end
    emit(job, 'delivery.pending', {})
  end
end
return { { delivery(row.tenant, row.id, now) } }
