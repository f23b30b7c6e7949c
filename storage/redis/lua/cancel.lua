#!lua flags=allow-oom
-- tenant id delete(bool) -> {record, proposal or false, must_be_stored(1 or 0), followed(1 or 0)} | 0 unknown | 1 gone
-- A waiting job ends at once; a running job ends when its worker sees the request or its lease ends. With `delete` the job
-- is purged at its end. A job of a format that is not read stays as it is. The keeper repeats a proposed end until it is committed. `must_be_stored`: the job is durable
-- and still runs, so the request must be stored in the object store as well. `followed`: the job has ended, and is kept for
-- others that have not.
local job, missing = find(args.tenant, args.id)
if not job then return missing end
if has_ended(job) or tonumber(job.version or '1') > READS then
  return { flatten(job), false, 0, is_followed(job.tenant, job.id) and 1 or 0 }
end
if args.delete and job.retention_us ~= '0' then write(job, { retention_us = '0' }) end
-- A job with running parts ends when they have.
local waits_for_parts = has_parts(job) and end_parts(job, now_us()) > 0
local can_end = WAITING[job.state] and not waits_for_parts
local proposal = can_end and finish(job, 'canceled', {}, now_us()) or false
if not TERMINAL[job.state] then
  if job.cancel ~= '1' then
    write(job, { cancel = '1' })
    if not can_end then emit(job, 'job.cancel_requested', {}) end
  end
  if proposal then expire_at(job, 0) end
end
return { flatten(job), proposal, job.durable == '1' and not has_ended(job) and not can_end and 1 or 0, 0 }
