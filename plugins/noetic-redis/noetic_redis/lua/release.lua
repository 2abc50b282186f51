-- runs, each before its fence
for index = 1, #ARGV - 6, 2 do
    local n, run = find(arg(index))
    if n and run.fence == arg(index + 1) then
        give_up(n, run, now())
    end
end
return {}
