-- Says whose edition the pages show: where a page has a div `.edition-summary`, with machine, versions and date, and
-- for the foot of every page, with machine and date. Quarto gets the latter as the page's last paragraph; the preview
-- finds it in the metadata field `edition-line`, and sets it into the page's footer.

local function beside(name)
  if quarto then return quarto.utils.resolve_path(name) end
  return pandoc.path.join({ pandoc.path.directory(PANDOC_SCRIPT_FILE), name })
end

local results = dofile(beside("results.lua"))
local some = results.some

local function project_root()
  local directory = quarto and quarto.project and quarto.project.directory
  if type(directory) == "function" then directory = directory() end
  return directory or os.getenv("QUARTO_PROJECT_DIR") or "."
end

-- How the edition's own notebooks were run: a list of provenances, and the edition's name.
local function runs(root)
  local info = results.read_json(pandoc.path.join({ root, "edition.json" })) or {}
  local borrowed, found = {}, pandoc.List()
  for _, stem in ipairs(some(info.borrowed) or {}) do borrowed[stem .. ".ipynb"] = true end
  local folder = pandoc.path.join({ root, "notebooks" })
  local ok, names = pcall(pandoc.system.list_directory, folder)
  names = pandoc.List(ok and names or {}):filter(function(name)
    return name:match("^[^.].*%.ipynb$") and not borrowed[name]
  end)
  names:sort()
  for _, name in ipairs(names) do
    local notebook = results.read_json(pandoc.path.join({ folder, name }))
    found:insert(some((notebook.metadata or {}).efficient_training))
  end
  return found, info.edition or "reference"
end

local function gib(bytes) return ("%.0f\u{a0}GiB"):format(bytes / 2 ^ 30) end

-- "2 × Example GPU (80 GiB), Example CPU with 16 cores and 128 GiB of memory, Linux"
local function machine(data)
  local count, parts = {}, pandoc.List()
  for _, gpu in ipairs(data.gpus) do
    local text = ("%s (%s)"):format(gpu.name, gib(gpu.memory_bytes))
    if not count[text] then parts:insert(text) end
    count[text] = (count[text] or 0) + 1
  end
  parts = parts:map(function(text) return count[text] > 1 and ("%d × %s"):format(count[text], text) or text end)
  local memory = some(data.memory_bytes)
  parts:insert(("%s with %d core%s%s"):format(data.cpu, data.cores, data.cores == 1 and "" or "s",
    memory and (" and %s of memory"):format(gib(memory)) or ""))
  parts:insert(data.system)
  return table.concat(parts, ", ")
end

-- The machines that the notebooks ran on, each once; the versions and the date of the latest run.
local function summary()
  local found, name = runs(project_root())
  local title = name == "reference" and "Reference edition" or "Edition " .. name
  if #found == 0 then return title .. ": its notebooks have no machine on record.", nil end
  local seen, machines, latest = {}, pandoc.List(), found[1]
  for _, run in ipairs(found) do
    local text = machine(run.machine)
    if not seen[text] then machines:insert(text) end
    seen[text] = true
    if run.date > latest.date then latest = run end
  end
  local packages = pandoc.List()
  for package, version in pairs(latest.versions) do packages:insert(package .. "\u{a0}" .. version) end
  packages:sort()
  local date = latest.date:gsub("-", "\u{2011}") -- in one line
  return ("%s: %s; %s."):format(title, table.concat(machines, "; "), date), table.concat(packages, ", ")
end

function Pandoc(doc)
  local line, versions = summary()
  doc = doc:walk({
    Div = function(div)
      if not div.classes:includes("edition-summary") then return nil end
      local first = { pandoc.Para({ pandoc.Str(line) }) }
      if versions then table.insert(first, pandoc.Para({ pandoc.Str("Versions: " .. versions .. ".") })) end
      div.content = pandoc.Blocks(first) .. div.content
      return div
    end,
  })
  if quarto then
    doc.blocks:insert(pandoc.Div({ pandoc.Para({ pandoc.Str(line) }) }, pandoc.Attr("", { "edition-line" })))
  else
    doc.meta["edition-line"] = pandoc.MetaString(line)
  end
  return doc
end
