#!lua flags=allow-oom
-- tenant id fence phases done total unit lane digest parts {{id, first, last, units}...} record {name: text} look_us
-- -> {ok | already | fenced, proposal or false}
-- Ends an attempt whose job goes on in parts: the job is delayed until no part lives, without a queue TTL, and its next
-- attempt has the same number. All parts are made here, so that no job waits for parts that nobody makes. While parts of an
-- earlier split live, no others are made. `look_us`: time after which `sweep` looks for a job whose parts are gone.
local job, why = held(args.tenant, args.id, args.fence)
if not job then return { why, false } end
local now = now_us()
job.phases = args.phases
if job.cancel == '1' then
  return { 'ok', finish(job, 'canceled', { ended_by = args.fence, phases = args.phases }, now) or false }
end
unlease(job)
local fields = progress(job, args.done, args.total or '', args.unit)
add_used(job, fields, args.record)
fields.attempts, fields.phases = past_attempts(job, 'split', now), ''
fields.state, fields.phase, fields.given_back, fields.ended_by = 'delayed', 'inferring', '1', args.fence
fields.due_us = int(now + args.look_us)

local function make(n, row)
  local id, first, last, units = unpack(row)
  local existing = load(job.tenant, id)
  if existing and not has_ended(existing) then return end
  forget_part(job.tenant, id)
  local part = { name = job.tenant .. '/' .. id, tenant = job.tenant, id = id, revision = '0', fence = '0' }
  write(part, {
    tenant = job.tenant, id = id, model = args.lane, queue = job.queue, parent = job.id, part_digest = args.digest,
    part_first = first, part_last = last, part_units = units, counted = '0', silent = '1',
    state = 'queued', phase = 'waiting', rank = int(job.rank + n), created_us = int(now), attempt = '0', crashes = '0',
    fence = '0', max_attempts = job.max_attempts, max_crashes = job.max_crashes, execution_us = job.execution_us, ttl_us = job.ttl_us,
    retention_us = '0', delivery = 'none', version = job.version or '1', fetch_hosts = job.fetch_hosts or '',
  })
  redis.call('SADD', parts_key(job), id)
  expire_at(part, now + part.ttl_us)
  enqueue(part)
end

if not parts_live(job) then
  fields.parts, fields.parts_ended = tostring(#args.parts), '0'
  write(job, fields)
  for n, row in ipairs(args.parts) do make(n, row) end
  emit(job, 'job.split', { parts = #args.parts, attempt = tonumber(job.attempt) })
else
  write(job, fields)
end
redis.call('ZADD', P .. 'delayed', job.due_us, job.name)
return { 'ok', false }
