-- run, fence, for how many microseconds
local n, run = find(arg(1))
if not n or run.fence ~= arg(2) or run['until'] == '' then
    return {'lost'}
end
redis.call('HSET', key('run', n), 'until', text(now() + tonumber(arg(3))))
return {'ok'}
