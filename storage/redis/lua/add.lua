#!lua
-- Small writes that add to Redis, and fail while it is out of memory: `args.op` names one.
local ops = {}

-- tenant digest id kept_us -> ok. The job is now the latest with this result.
function ops.result()
  redis.call('SET', tkey(args.tenant, 'result:' .. args.digest), args.id, 'PX', int(args.kept_us / 1000))
  return 'ok'
end

-- tenant endpoint nonce -> now_us. A change of an endpoint begins. The keeper ends a change that is never ended.
function ops.endpoint_change()
  local now = int(now_us())
  redis.call('ZADD', P .. 'endpoints:changing', now, args.tenant .. '/' .. args.endpoint .. '/' .. args.nonce)
  return now
end

-- tenant id fence at length data -> 1 | 0 not held. A repeated call emits its text once.
function ops.text()
  local job = held(args.tenant, args.id, args.fence)
  if not job then return 0 end
  local fence, streamed = string.match(job.said or '', '^(%d+):(%d+)$')
  if fence ~= args.fence then streamed = '0' end
  if tonumber(args.at) >= tonumber(streamed) then
    write(job, { said = args.fence .. ':' .. int(args.at + args.length) })
    emit(job, 'job.text', args.data)
  end
  return 1
end

-- tenant id fence data -> 1 | 0 not held. A preview of an artifact; a repeated call emits it again, without harm.
function ops.preview()
  local job = held(args.tenant, args.id, args.fence)
  if not job then return 0 end
  emit(job, 'job.preview', args.data)
  return 1
end

return ops[args.op]()
