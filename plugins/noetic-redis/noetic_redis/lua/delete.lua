-- run
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
if not n then
    return refuse('ok')
end
if held(run, now()) then
    return refuse('busy')
end
forget(n, run)
return finish('ok')
