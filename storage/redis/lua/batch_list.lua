#!lua flags=no-writes
-- tenant before_us limit -> {{view...}, next_before_us}. Newest first.
local found, before, limit = {}, args.before, tonumber(args.limit)
while #found < limit do
  local rows = redis.call('ZREVRANGEBYSCORE', tkey(args.tenant, 'batches'), before, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)
  if #rows == 0 then return { found, '' } end
  for i = 1, #rows, 2 do
    before = '(' .. int(tonumber(rows[i + 1]))
    local batch = batch_view(args.tenant, rows[i])
    if batch then found[#found + 1] = batch end
    if #found == limit then break end
  end
end
return { found, before }
