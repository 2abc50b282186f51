-- run
local n, run = find(arg(1))
return n and {run.pos, run.fence} or {}
