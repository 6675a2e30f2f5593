-- What a reader learns on pointing at a value or a claim: the figure in full, its conditions, machine, versions, date.

local notes = {}

local function sorted(map)
  local keys = {}
  for key in pairs(map or {}) do table.insert(keys, key) end
  table.sort(keys)
  return keys
end

local function number(value)
  if type(value) == "number" then
    return value == math.floor(value) and ("%.0f"):format(value) or ("%.6g"):format(value)
  end
  return tostring(value)
end

-- "batch 128, dtype bfloat16"
local function conditions(map)
  local parts = {}
  for _, key in ipairs(sorted(map)) do table.insert(parts, key:gsub("_", " ") .. " " .. number(map[key])) end
  return table.concat(parts, ", ")
end

local function machine(data)
  local parts = { data.cpu .. ", " .. number(data.cores) .. (data.cores == 1 and " core" or " cores") }
  local count, order = {}, {}
  for _, gpu in ipairs(data.gpus) do
    if not count[gpu.name] then table.insert(order, gpu.name) end
    count[gpu.name] = (count[gpu.name] or 0) + 1
  end
  for _, name in ipairs(order) do
    table.insert(parts, count[name] > 1 and number(count[name]) .. " × " .. name or name)
  end
  table.insert(parts, data.system)
  return table.concat(parts, "; ")
end

local function versions(map)
  local parts = {}
  for _, key in ipairs(sorted(map)) do table.insert(parts, key .. " " .. map[key]) end
  return table.concat(parts, ", ")
end

-- The lines that tell how a notebook was run; `some` turns JSON's null into nil.
local function run(entry, edition, some)
  local lines = {}
  if entry.borrowed then table.insert(lines, "borrowed from the reference edition: edition " .. edition .. " lacks it") end
  local made = entry.provenance
  if not made then
    table.insert(lines, "notebook " .. entry.notebook .. ", run by hand: no machine on record")
    return lines
  end
  table.insert(lines, machine(made.machine))
  local used = versions(made.versions)
  if used ~= "" then table.insert(lines, used) end
  local commit = some(made.commit)
  local at = commit and "commit " .. commit:sub(1, 7) .. (made.dirty and " with local changes" or "") or "no commit"
  table.insert(lines, ("%s, %s, notebook %s, tier %s"):format(made.date, at, entry.notebook, made.tier))
  return lines
end

-- The note of a record, `full` being its value in full or its reason.
function notes.record(entry, full, edition, some)
  local lines = { ("%s: %s (%s)"):format(entry.data.name, full, entry.data.kind) }
  local stated = conditions(some(entry.data.conditions))
  if stated ~= "" then table.insert(lines, stated) end
  for _, line in ipairs(run(entry, edition, some)) do table.insert(lines, line) end
  return table.concat(lines, "\n")
end

-- The note of a claim: the statement as tested, its evidence, and how it was run.
function notes.claim(entry, edition, some)
  local data = entry.data
  local scope = data.scope == "everywhere" and "must hold on every machine" or "judged on each machine"
  local lines = { data.statement .. " (" .. data.name .. ", " .. scope .. ")" }
  if data.evidence ~= "" then table.insert(lines, data.evidence) end
  for _, line in ipairs(run(entry, edition, some)) do table.insert(lines, line) end
  return table.concat(lines, "\n")
end

return notes
