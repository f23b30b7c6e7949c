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

-- tenant id fence number attempt lines cut data max_bytes max_lines -> 1 | 0 not held. A part of the attempt's lines, as
-- JSON that is stored as it is; a repeated call stores it once. The oldest parts of the job go where there are too many
-- bytes or lines, and the lines in them count as cut.
function ops.lines()
  local job = held(args.tenant, args.id, args.fence)
  if not job then return 0 end
  local key, pattern = jobkey(args.tenant, args.id) .. ':logs', '^(%d+):(%d+):(%d+):(%d+):(%d+)|'
  local fence, number = string.match(redis.call('LINDEX', key, -1) or '', pattern)
  if fence == args.fence and tonumber(number) >= tonumber(args.number) then return 1 end
  local head = table.concat({ args.fence, args.number, args.attempt, args.lines, args.cut }, ':')
  redis.call('RPUSH', key, head .. '|' .. args.data)
  -- `forget` deletes the list; that of an earlier release does not know it.
  redis.call('PEXPIRE', key, int((job.retention_us + job.execution_us) / 1000 + 7 * 86400000))
  local parts, bytes, lines, left = redis.call('LRANGE', key, 0, -1), 0, 0, 0
  for i = #parts, 1, -1 do
    local _, _, _, n, cut = string.match(parts[i], pattern)
    bytes, lines = bytes + #parts[i], lines + n
    if i < #parts and (bytes > tonumber(args.max_bytes) or lines > tonumber(args.max_lines)) then
      left = left + n + cut
      redis.call('LPOP', key)
    end
  end
  if left > 0 then
    local of, nth, attempt, n, cut, data = string.match(redis.call('LINDEX', key, 0), pattern .. '(.*)$')
    redis.call('LSET', key, 0, table.concat({ of, nth, attempt, n, int(cut + left) }, ':') .. '|' .. data)
  end
  return 1
end

return ops[args.op]()
