-- The records and claims of the executed notebooks of a project, and what is known of how they were made.
--
-- notebooks/*.ipynb is the edition. Where the project's root holds edition.json (written by the assembly of another
-- machine's edition), reference/*.ipynb holds the reference edition's notebooks: what the edition lacks, or has in a
-- notebook that was itself borrowed, is taken from there and marked as borrowed.

local results = {}

local KEY = "efficient_training"

-- JSON's null as nil.
function results.some(value)
  if value == pandoc.json.null then return nil end
  return value
end
local some = results.some

local function read_json(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("a")
  file:close()
  local ok, data = pcall(pandoc.json.decode, text, false)
  if not ok or type(data) ~= "table" then error(path .. ": not valid JSON; make it anew", 0) end
  return data
end
results.read_json = read_json

local function notebooks_in(folder)
  local found, names = {}, {}
  local ok, listed = pcall(pandoc.system.list_directory, folder)
  for _, name in ipairs(ok and listed or {}) do
    local stem = name:match("^([^.].*)%.ipynb$")
    if stem then table.insert(names, stem) end
  end
  table.sort(names)
  for _, stem in ipairs(names) do
    local notebook = read_json(pandoc.path.join({ folder, stem .. ".ipynb" }))
    table.insert(found, { stem = stem, notebook = notebook })
  end
  return found
end

-- Add the records and claims of one notebook to `entries`; a name that is taken is remembered in `twice`.
local function gather(item, borrowed, entries, twice)
  local provenance = some((item.notebook.metadata or {})[KEY])
  for _, cell in ipairs(item.notebook.cells or {}) do
    for _, output in ipairs(some(cell.outputs) or {}) do
      local data = some((some(output.metadata) or {})[KEY])
      if data and data.name then
        if entries[data.name] then
          twice[data.name] = true
        else
          entries[data.name] = { data = data, provenance = provenance, notebook = item.stem, borrowed = borrowed }
        end
      end
    end
  end
end

local function set_of(list)
  local set = {}
  for _, item in ipairs(some(list) or {}) do set[item] = true end
  return set
end

-- The results of the project at `root`: {edition, stale, entries, twice}; `entries` by name.
function results.load(root)
  local info = read_json(pandoc.path.join({ root, "edition.json" })) or {}
  local borrowed = set_of(info.borrowed)
  local made = { edition = info.edition or "reference", stale = set_of(info.stale), entries = {}, twice = {} }
  for _, item in ipairs(notebooks_in(pandoc.path.join({ root, "notebooks" }))) do
    if not borrowed[item.stem] then gather(item, false, made.entries, made.twice) end
  end
  if info.edition then
    local reference = {}
    for _, item in ipairs(notebooks_in(pandoc.path.join({ root, "reference" }))) do
      gather(item, true, reference, made.twice)
    end
    for name, entry in pairs(reference) do
      made.entries[name] = made.entries[name] or entry
    end
  end
  return made
end

return results
