#!lua flags=allow-oom
-- tenant id fence lease_us phase done total unit message timeout_error checkpoints -> go | cancel | lost
local job = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return 'lost' end
local now = now_us()
if now >= tonumber(job.deadline_us) then
  finish(job, 'failed', { error = ARGV[10], ended_by = ARGV[3] }, now)  -- of a durable job the keeper sees to it
  return 'lost'
end
redis.call('ZADD', P .. 'leases', int(now + ARGV[4]), job.name)
local fields = progress(job, ARGV[6], ARGV[7], ARGV[8])
local advanced = tonumber(fields.done or '0') > tonumber(job.done or '0')
local phase_changed = job.phase ~= ARGV[5]
fields.lease_us, fields.phase, fields.message, fields.checkpoints = int(now + ARGV[4]), ARGV[5], ARGV[9], ARGV[11]
local tell = phase_changed or ((advanced or job.message ~= ARGV[9])
  and now - tonumber(job.reported_us or '0') >= 900000)
if tell then fields.reported_us = int(now) end
write(job, fields)
if tell then
  emit(job, 'job.progress', { phase = job.phase, done = tonumber(job.done or '0'), total = tonumber(job.total or '') or cjson.null,
    unit = job.unit, message = job.message ~= '' and job.message or cjson.null, attempt = tonumber(job.attempt) })
  announce_progress(job, now)
end
return job.cancel == '1' and 'cancel' or 'go'
