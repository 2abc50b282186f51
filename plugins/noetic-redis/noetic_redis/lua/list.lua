-- below which number or nothing, how many, the digest of a status or nothing
local index = arg(3) == '' and key('runs') or key('status', arg(3))
local below = arg(1) == '' and '+inf' or '(' .. arg(1)
local found = redis.call('ZREVRANGEBYSCORE', index, below, '-inf', 'WITHSCORES', 'LIMIT', 0, arg(2))
local time, rows = now(), {}
for at = 1, #found, 2 do
    local n, score = found[at], found[at + 1]
    local run = readable(n)
    -- An index that is damaged names a run in another place, or under another status.
    local fine = run and tonumber(score) == tonumber(n) and (arg(3) == '' or run.skey == arg(3))
    if fine and redis.call('HGET', key('ids'), run.id) == n then
        rows[#rows + 1] = shown(n, run, time)
    else
        local id = redis.pcall('HGET', key('run', n), 'id')
        rows[#rows + 1] = {score, type(id) == 'string' and id or ''}
    end
end
return rows
