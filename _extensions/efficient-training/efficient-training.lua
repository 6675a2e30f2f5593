-- Binds the numbers and claims in a chapter to the executed notebooks.
--
--   [checkpointing.segments.reduction]{.value fmt=".2f" unit="ratio"}   the record's value
--   [autocast lowers the peak]{.claim name="precision.lowers_peak"}     the text, and whether it held
--   [14 GB]{.given}                                                     a number typed by hand, passed through
--
-- Runs in Quarto (filters: [efficient-training]) and in plain pandoc (--lua-filter) alike. The project's root is
-- Quarto's, or QUARTO_PROJECT_DIR, or the working directory. A name that is unknown or cannot be shown as asked is
-- marked in the page; in the reference edition it also fails the render. Nothing from a notebook becomes raw HTML.

local function beside(name)
  if quarto then return quarto.utils.resolve_path(name) end
  return pandoc.path.join({ pandoc.path.directory(PANDOC_SCRIPT_FILE), name })
end

local numbers = dofile(beside("numbers.lua"))
local results = dofile(beside("results.lua"))
local notes = dofile(beside("notes.lua"))
local units = results.read_json(beside("units.json"))
local some = results.some

local RICH = { html = true, html4 = true, html5 = true, epub = true, epub2 = true, epub3 = true, revealjs = true,
  chunkedhtml = true, json = true, native = true }
local rich = RICH[FORMAT] or false
local NBSP = "\u{a0}"

local loaded, problems, used, any_borrowed = nil, {}, {}, false

local function project_root()
  local directory = quarto and quarto.project and quarto.project.directory
  if type(directory) == "function" then directory = directory() end
  return directory or os.getenv("QUARTO_PROJECT_DIR") or "."
end

local function source_file()
  if quarto and quarto.doc and quarto.doc.input_file then return quarto.doc.input_file end
  local first = PANDOC_STATE.input_files[1]
  return first and first ~= "-" and first or os.getenv("QUARTO_DOCUMENT_FILE") or "this page"
end

local function project()
  if not loaded then loaded = results.load(project_root()) end
  return loaded
end

local function problem(message)
  table.insert(problems, message)
  return pandoc.Span({ pandoc.Strong({ pandoc.Str("[" .. message .. "]") }) }, pandoc.Attr("", { "binding-error" }))
end

-- The entry called `name` of the wanted type; or nil and what is wrong.
local function find(name, kind)
  local entry = project().entries[name]
  if not entry or entry.data.type ~= kind then
    local other = entry and (", it is a " .. entry.data.type) or ""
    return nil, ("no %s called %s in the executed notebooks%s"):format(kind, name, other)
  end
  if project().twice[name] then return nil, "two notebooks have a figure called " .. name end
  if not entry.borrowed then used[entry.notebook] = true end
  return entry
end

-- The span that carries a value or a claim, with its note for those who point at it or tab to it.
local function carrier(content, classes, entry, note)
  if entry.borrowed then
    any_borrowed = true
    classes:insert("borrowed")
    if rich then
      content:insert(pandoc.Span({ pandoc.Superscript({ pandoc.Str("ref") }) }, pandoc.Attr("", { "borrowed-mark" })))
    else
      content:insert(pandoc.Str(NBSP .. "(reference)"))
    end
  end
  if not rich then return content end
  return pandoc.Span(content, pandoc.Attr("", classes, {
    { "title", note }, { "tabindex", "0" }, { "role", "note" },
    { "data-name", entry.data.name }, { "data-notebook", entry.notebook }, { "data-note", note },
  }))
end

local function value(el)
  local name = pandoc.utils.stringify(el.content)
  local entry, wrong = find(name, "record")
  if not entry then return problem(wrong) end
  local edition, data = project().edition, entry.data
  local number = some(data.value)
  if not number then
    local note = notes.record(entry, data.reason, edition, some)
    return carrier(pandoc.List({ pandoc.Str(data.reason) }), pandoc.List({ "bound-value", "no-value" }), entry, note)
  end
  local printed, fault = numbers.format(number, data.unit, el.attributes.fmt, el.attributes.unit, units)
  if not printed then return problem(name .. ": " .. fault) end
  local note = notes.record(entry, numbers.in_full(number, data.unit, units), edition, some)
  return carrier(numbers.inlines(printed), pandoc.List({ "bound-value" }), entry, note)
end

-- The class of a claim's verdict, its mark, and what else the page shows of it.
local function verdict(data)
  local held = some(data.held)
  if held == true then return "held", "✓ held", nil end
  if held == false then return "not-held", "✗ not held here", data.evidence end
  return "not-run", "– not run here", (data.reason:gsub("^not run here:%s*", ""))
end

local function claim(el)
  local entry, wrong = find(el.attributes.name or "", "claim")
  if not entry then return problem(wrong) end
  local class, mark, detail = verdict(entry.data)
  local content = pandoc.List(el.content)
  if rich then
    content:insert(pandoc.Str(NBSP))
    content:insert(pandoc.Span({ pandoc.Str(mark) }, pandoc.Attr("", { "claim-mark" })))
    if detail then
      content:insert(pandoc.Space())
      content:insert(pandoc.Span({ pandoc.Str("(" .. detail .. ")") }, pandoc.Attr("", { "claim-detail" })))
    end
  else
    local words = mark:gsub("^%S+ ", "")
    content:insert(pandoc.Str(" (" .. words .. (detail and ": " .. detail or "") .. ")"))
  end
  local note = notes.claim(entry, project().edition, some)
  return carrier(content, pandoc.List({ "bound-claim", class }), entry, note)
end

local function bind(el)
  if el.classes:includes("value") then return value(el) end
  if el.classes:includes("claim") then return claim(el) end
end

local function note_block(title, text)
  local content = { pandoc.Strong({ pandoc.Str(title) }), pandoc.Space(), pandoc.Str(text) }
  return pandoc.Div({ pandoc.Para(content) }, pandoc.Attr("", { "edition-note" }, { { "role", "note" } }))
end

-- What the page says at its top of numbers that are old, or of another machine.
local function page_notes()
  local blocks, stale = pandoc.List(), pandoc.List()
  for stem in pairs(used) do
    if loaded.stale[stem] then stale:insert(stem) end
  end
  stale:sort()
  if #stale > 0 then
    local text = ("Edition %s ran %s before it was last changed; the numbers on this page from there are of that version.")
    blocks:insert(note_block("Made by an older version.", text:format(loaded.edition, table.concat(stale, ", "))))
  end
  if any_borrowed then
    local text = "Edition %s lacks some numbers of this page; those marked “%s” are the reference edition’s."
    blocks:insert(note_block("Partly borrowed.", text:format(loaded.edition, rich and "ref" or "reference")))
  end
  return blocks
end

local function report()
  local where = source_file()
  local lines = pandoc.List(problems):map(function(message) return where .. ": " .. message end)
  if project().edition == "reference" then
    local text = table.concat(lines, "\n")
    if quarto then error(text, 0) end
    io.stderr:write(text .. "\n")   -- without the traceback of this file, which is of no use to an author
    os.exit(83)                     -- pandoc's own code where a filter fails
  end
  for _, line in ipairs(lines) do
    if quarto then quarto.log.warning(line) else io.stderr:write("[WARNING] " .. line .. "\n") end
  end
end

local function finish(doc)
  if #problems > 0 then report() end
  if quarto and quarto.doc.is_format("html") then
    quarto.doc.add_html_dependency({ name = "efficient-training", version = "0.1.0",
      stylesheets = { "efficient-training.css" } })
  end
  if not loaded then return nil end
  local first = doc.blocks[1]
  local at = first and first.t == "Header" and first.level == 1 and 2 or 1
  for index, block in ipairs(page_notes()) do doc.blocks:insert(at + index - 1, block) end
  return doc
end

return { { Span = bind }, { Pandoc = finish } }
