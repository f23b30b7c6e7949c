#!lua flags=allow-oom
-- tenant id outcome(JSON) announce_within_us names(of all fields of this release) brief(bool) -> record | 1 gone | ok (`brief`)
-- Sets the record to the stored `outcome.json`, whatever its state was; creates a record that Redis has lost. Only a caller
-- that has stored or read this object may run it. A terminal record stays as it is.
local tenant, id = args.tenant, args.id
-- Fields that are no part of the outcome. All other `names` that it lacks, such as those of a claim after it was proposed,
-- are cleared: the record is the same as if it were created again from the outcome. Fields of other releases stay.
local OWN = { tenant = true, id = true, revision = true, delivery = true, said = true, progress_told_us = true }
local job = load(tenant, id)
if job and has_ended(job) then return args.brief and 'ok' or flatten(job) end
if not job and redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return 1 end
local outcome = cjson.decode(args.outcome)
local fields = outcome.record
local completed = tonumber(fields.completed_us)
fields.revision, fields.delivery = nil, nil
if not job then
  job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = fields.model, queue = fields.queue, revision = '0',
    batch = fields.batch }
  fields.delivery = 'none'
  enlist(job, fields.created_us)
  redis.call('SADD', P .. 'queues', job.queue)
  if now_us() - completed > tonumber(args.announce_within_us) then
    job.silent = true
  else
    for _, row in ipairs(outcome.deliveries) do
      row.leased_us = nil
      local is_pending = keep(row, now_us()) or fields.delivery == 'pending'
      fields.delivery = is_pending and 'pending' or 'delivered'
    end
  end
end
for field in string.gmatch(args.names, '%S+') do
  if job[field] and not (fields[field] or OWN[field]) then fields[field] = '' end
end
if not job.created_us then
  emit(job, 'job.recovered', { attempt = tonumber(fields.attempt), worker = fields.worker, fence = fields.fence })
end
terminate(job, fields.state, fields, completed)
job.silent = nil
return args.brief and 'ok' or flatten(job)
