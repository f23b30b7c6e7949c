#!lua flags=allow-oom
-- tenant id error -> {record, proposal or false} | 0 unknown | 1 gone. As `cancel`, but a waiting job ends as expired. The
-- caller repeats the call until the end is committed.
local job, missing = find(args.tenant, args.id)
if not job then return missing end
if has_ended(job) or tonumber(job.version or '1') > READS then return { flatten(job), false } end
if WAITING[job.state] and not (has_parts(job) and end_parts(job, now_us()) > 0) then
  local proposal = finish(job, 'expired', { error = args.error }, now_us())
  if proposal then redis.call('ZADD', P .. 'expiring', '0', job.name) end
  return { flatten(job), proposal or false }
end
if job.cancel ~= '1' then
  write(job, { cancel = '1' })
  emit(job, 'job.cancel_requested', {})
end
return { flatten(job), false }
