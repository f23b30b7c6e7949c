#!lua flags=allow-oom
-- tenant id fence lease_us phase done total unit message timeout_error checkpoints waited_us phases
-- (total, message, waited_us: optional)
-- -> go | cancel | lost
local message = args.message or ''
local job = held(args.tenant, args.id, args.fence)
if not job then return 'lost' end
local now = now_us()
-- The time limit does not run while an attempt waits for the object store.
local waited = tonumber(args.waited_us or '0')
if waited > tonumber(job.waited_us or '0') then
  local deadline = int(job.started_us + job.execution_us + waited)
  redis.call('ZADD', P .. 'deadlines', deadline, job.name)
  write(job, { waited_us = int(waited), deadline_us = deadline })
end
if now >= tonumber(job.deadline_us) then
  finish(job, 'failed', { error = args.timeout_error, ended_by = args.fence }, now)  -- the keeper ends a durable job
  return 'lost'
end
redis.call('ZADD', P .. 'leases', int(now + args.lease_us), job.name)
local fields = progress(job, args.done, args.total or '', args.unit)
local advanced = tonumber(fields.done or '0') > tonumber(job.done or '0')
local phase_changed = job.phase ~= args.phase
fields.lease_us, fields.phase, fields.message, fields.checkpoints = int(now + args.lease_us), args.phase, message, args.checkpoints
fields.phases = args.phases
local report = phase_changed or ((advanced or job.message ~= message)
  and now - tonumber(job.reported_us or '0') >= 900000)
if report then fields.reported_us = int(now) end
write(job, fields)
if is_part(job) then
  report = false
  local parent, of = load(job.tenant, job.parent), tonumber(job.total or '') or 0
  if parent and has_parts(parent) and of > 0 and count_part(job, parent, job.part_units * math.min(1, job.done / of)) then
    write(job, { counted = job.counted })
    if now - tonumber(parent.reported_us or '0') >= 900000 then
      write(parent, { reported_us = int(now) })
      emit(parent, 'job.progress', { phase = parent.phase, done = tonumber(parent.done), unit = parent.unit,
        total = tonumber(parent.total or '') or cjson.null, message = cjson.null, attempt = tonumber(parent.attempt) })
      announce_progress(parent, now)
    end
  end
end
if report then
  emit(job, 'job.progress', { phase = job.phase, done = tonumber(job.done or '0'), total = tonumber(job.total or '') or cjson.null,
    unit = job.unit, message = job.message ~= '' and job.message or cjson.null, attempt = tonumber(job.attempt) })
  announce_progress(job, now)
end
return job.cancel == '1' and 'cancel' or 'go'
