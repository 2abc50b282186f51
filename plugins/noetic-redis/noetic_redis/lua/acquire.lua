-- run, for how many microseconds
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
local time = now()
local names = {'fence', 'until'}
if run then
    if held(run, time) then
        return refuse('busy')
    end
else
    n, run = create(arg(1), time)
    names = {'until', unpack(FIELDS)}
end
run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
run['until'] = text(time + tonumber(arg(2)))
save(n, run, names)
return finish('ok', run.fence, run.pos)
