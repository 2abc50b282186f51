-- below which number, how many, the digest of a status or nothing
local index = arg(3) == '' and key('runs') or key('status', arg(3))
local time, rows = now(), {}
for _, n in ipairs(redis.call('ZREVRANGEBYSCORE', index, '(' .. arg(1), '-inf', 'LIMIT', 0, arg(2))) do
    local run = readable(n)
    local id = not run and redis.pcall('HGET', key('run', n), 'id')
    rows[#rows + 1] = run and shown(n, run, time) or {n, type(id) == 'string' and id or ''}
end
return rows
