-- tables.lua COUNT: tables of strings and of tables, half of which become garbage.
local count = tonumber(arg[1])
local items, by_name = {}, {}
for i = 1, count do
  local item = {name = "item-" .. i, number = i * 2654435761 % 4294967291, next = items[i - 1]}
  items[i] = item
  by_name[item.name] = item
end
for i = 2, count, 2 do
  by_name[items[i].name] = nil
  items[i] = {name = items[i].name .. "-again", number = i, next = false}
end
collectgarbage()
local sum = 0
for i = 1, count do
  if i % 2 == 1 then
    local item = by_name["item-" .. i]
    assert(item == items[i] and item.number == i * 2654435761 % 4294967291)
    assert(i == 1 or item.next.name == "item-" .. i - 1)
  else
    assert(by_name["item-" .. i] == nil and items[i].number == i)
  end
  sum = (sum * 31 + items[i].number) % 1000000007
end
table.sort(items, function(a, b) return a.name < b.name end)
print(count, sum, items[1].name, items[count].name)
