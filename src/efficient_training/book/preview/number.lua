-- Numbers chapters, sections, figures, tables and equations, and reports every label with its number: the document's
-- metadata field `preview` is JSON {title, labels: {id: {kind, number, title}}, twice: [...], images: [...], math: bool,
-- sections: bool, edition: string}.

local page = pandoc.json.decode(io.open(os.getenv("PREVIEW_PAGE")):read("a"), false)
local NAMES = { fig = "Figure", tbl = "Table" }
local LONG_LABEL = 20
local NBSP = "\u{a0}"

local labels, twice, images, has_math, title = {}, pandoc.List(), pandoc.List(), false, nil
local counts, sections, has_sections = {}, {}, false

local function html(text) return pandoc.RawBlock("html", text) end

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local function register(id, entry)
  if labels[id] then twice:insert(id) end
  labels[id] = entry
end

local function next_number(kind)
  counts[kind] = (counts[kind] or 0) + 1
  return (page.number ~= "" and page.number .. "." or "") .. counts[kind]
end

local function section_number(level)
  sections[level] = (sections[level] or 0) + 1
  for deeper = level + 1, 6 do sections[deeper] = nil end
  local parts = { page.number }
  for l = 2, level do table.insert(parts, tostring(sections[l] or 0)) end
  return table.concat(parts, ".")
end

local function header(element)
  local number
  if element.level == 1 then
    number = page.number ~= "" and page.number or nil
    title = title or pandoc.utils.stringify(element.content)
  end
  if element.level == 2 and not element.classes:includes("unlisted") then has_sections = true end
  if element.level > 1 and page.number ~= "" and not element.classes:includes("unnumbered") then
    number = section_number(element.level)
  end
  if element.identifier ~= "" then
    local kind = element.level == 1 and (page.appendix and "Appendix" or "Chapter") or "Section"
    register(element.identifier, { kind = kind, number = number, title = pandoc.utils.stringify(element.content) })
  end
  if number and element.level <= page.number_depth then
    element.content:insert(1, pandoc.Space())
    element.content:insert(1, pandoc.Span({ pandoc.Str(number) }, pandoc.Attr("", { "header-number" })))
  end
  return element
end

-- One box for every figure and table: the caption stands outside the part that scrolls.
local function float(id, kind, body, caption)
  local inlines = pandoc.utils.blocks_to_inlines(caption)
  if id ~= "" and NAMES[kind] then
    local number = next_number(kind)
    register(id, { kind = NAMES[kind], number = number, title = pandoc.utils.stringify(inlines) })
    local label = pandoc.Span({ pandoc.Str(NAMES[kind] .. NBSP .. number) }, pandoc.Attr("", { "float-number" }))
    inlines = (#inlines > 0 and pandoc.Inlines({ label, pandoc.Space() }) or pandoc.Inlines({ label })) .. inlines
  end
  local blocks = pandoc.List({ html(('<figure class="float float-%s"%s>'):format(kind,
    id ~= "" and (' id="%s"'):format(escape(id)) or "")) })
  local captioned = #inlines > 0 and { html("<figcaption>"), pandoc.Plain(inlines), html("</figcaption>") } or {}
  if kind == "tbl" then blocks:extend(captioned) end
  blocks:insert(pandoc.Div(body, pandoc.Attr("", { "scroll" })))
  if kind ~= "tbl" then blocks:extend(captioned) end
  blocks:insert(html("</figure>"))
  return blocks
end

-- Columns as wide as what is in them (pandoc would take the dashes of a long pipe table for widths), and a mark on a
-- table whose first column has long words in it, so that on a phone the table scrolls before that column is a word wide.
local function free_columns(element)
  element.colspecs = element.colspecs:map(function(column) return { column[1], nil } end)
  for _, body in ipairs(element.bodies) do
    for _, row in ipairs(body.body) do
      local first = row.cells[1] and pandoc.utils.stringify(row.cells[1].contents) or ""
      if #first > LONG_LABEL then
        element.classes:insert("long-labels")
        return
      end
    end
  end
end

local function figure(element)
  local kind = element.identifier:match("^(%a+)%-")
  local body = element.content:walk({
    traverse = "topdown",
    Table = function(t)   -- a table under a caption of the figure's needs no box of its own
      t.caption = {}
      free_columns(t)
      return t, false
    end,
    Image = function(image)
      if not image.attributes.alt then image.attributes.alt = pandoc.utils.stringify(image.caption) end
      images:insert(image.src)
      return image
    end,
  })
  return float(element.identifier, kind == "tbl" and "tbl" or "fig", body, element.caption.long), false
end

local function table_box(element)
  local caption = element.caption.long
  local id = element.identifier
  element.caption, element.identifier = {}, ""
  free_columns(element)
  if id == "" and #caption == 0 then return pandoc.Div({ element }, pandoc.Attr("", { "scroll" })), false end
  return float(id, "tbl", { element }, caption), false
end

-- $$ ... $$ {#eq-x}: the equation and its number side by side, out of the paragraph.
local function paragraph(element)
  for i, inline in ipairs(element.content) do
    if inline.t == "Math" and inline.mathtype == "DisplayMath" then
      for j = i + 1, math.min(i + 2, #element.content) do
        local label = element.content[j]
        local id = label.t == "Str" and label.text:match("^{#(eq%-[%w_-]+)}")
        if id then
          local number = next_number("eq")
          register(id, { kind = "Equation", number = number, title = "" })
          local rest = pandoc.Inlines({ table.unpack(element.content, j + 1) })
          local after = label.text:match("}(.*)$")
          if after ~= "" then rest:insert(1, pandoc.Str(after)) end
          while rest[1] and (rest[1].t == "Space" or rest[1].t == "SoftBreak") do rest:remove(1) end
          local before = pandoc.Inlines({ table.unpack(element.content, 1, i - 1) })
          local blocks = pandoc.List()
          if #before > 0 then blocks:insert(pandoc.Para(before)) end
          blocks:insert(html(('<div class="equation" id="%s"><div class="scroll">'):format(id)))
          blocks:insert(pandoc.Plain({ inline }))
          blocks:insert(html(('</div><span class="equation-number">(%s)</span></div>'):format(number)))
          if #rest > 0 then blocks:extend(pandoc.List(paragraph(pandoc.Para(rest)) or { pandoc.Para(rest) })) end
          return blocks, false
        end
      end
    end
  end
end

local function inline_image(element)
  images:insert(element.src)
end

function Pandoc(doc)
  if page.subtitle ~= "" then
    doc.blocks:insert(2, pandoc.Div({ pandoc.Para({ pandoc.Str(page.subtitle) }) }, pandoc.Attr("", { "subtitle" })))
  end
  doc:walk({ Math = function() has_math = true end })
  doc = doc:walk({ traverse = "topdown", Header = header, Figure = figure, Table = table_box, Para = paragraph,
    Image = inline_image })
  doc.meta.preview = pandoc.MetaString(pandoc.json.encode({
    title = title or "", labels = labels, twice = twice, images = images, math = has_math,
    edition = pandoc.utils.stringify(doc.meta["edition-line"] or ""), sections = has_sections,
  }))
  return doc
end
