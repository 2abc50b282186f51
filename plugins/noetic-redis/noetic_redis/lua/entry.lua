-- run
local n, run = find(arg(1))
return n and {shown(n, run, now())} or {}
