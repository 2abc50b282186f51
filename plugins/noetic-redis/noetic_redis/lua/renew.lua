-- run, fence, for how many microseconds
local n, run = find(arg(1))
if not n or run.fence ~= arg(2) or run['until'] == '' then
    return {'lost'}
end
own(n, run, now(), arg(3))
return {'ok'}
