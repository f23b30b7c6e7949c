#!lua flags=no-writes
-- tenant before_us limit -> {{view...}, next_before_us}. Newest first.
local found, before, limit = {}, ARGV[2], tonumber(ARGV[3])
while #found < limit do
  local rows = redis.call('ZREVRANGEBYSCORE', tkey(ARGV[1], 'batches'), before, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)
  if #rows == 0 then return { found, '' } end
  for i = 1, #rows, 2 do
    before = '(' .. int(tonumber(rows[i + 1]))
    local batch = batch_view(ARGV[1], rows[i])
    if batch then found[#found + 1] = batch end
    if #found == limit then break end
  end
end
return { found, before }
