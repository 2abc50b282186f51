-- run, for how many microseconds
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
local time = now()
local names = {'fence'}
if run then
    if held(run, time) then
        return refuse('busy')
    end
else
    n, run = create(arg(1), time)
    names = FIELDS
end
run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
save(n, run, names)
own(n, run, time, arg(2))
return finish('ok', run.fence, run.pos)
