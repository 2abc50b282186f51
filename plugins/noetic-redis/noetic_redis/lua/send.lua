-- run, key, crc of the body, body
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
if not n then
    return refuse('none')
end
return finish('ok', deliver(n, run, now(), arg(2), arg(3), arg(4)))
