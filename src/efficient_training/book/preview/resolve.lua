-- Cross-references: @fig-x, [-@fig-x] (number only), [Tables @tbl-x; @tbl-y] (own prefix), links to other pages.

local page = pandoc.json.decode(io.open(os.getenv("PREVIEW_PAGE")):read("a"), false)
local book = pandoc.json.decode(io.open(os.getenv("PREVIEW_BOOK")):read("a"), false)

local KINDS = { fig = true, tbl = true, sec = true, eq = true }
local NBSP = "\u{a0}"
local cited = false

local function problem(what) io.stderr:write("PROBLEM\t" .. what .. "\n") end

local function kind_of(id) return KINDS[id:match("^(%a+)%-") or ""] end

local function text_of(citation, entry)
  local prefix = #citation.prefix > 0 and pandoc.utils.stringify(citation.prefix) or nil
  if not entry.number then return entry.title end
  if citation.mode == "SuppressAuthor" then return entry.number end
  return (prefix or entry.kind) .. NBSP .. entry.number
end

local function reference(citation)
  local id = citation.id:sub(1, 1):lower() .. citation.id:sub(2)
  local entry = book.labels[id]
  if not entry then
    problem("unresolved cross-reference @" .. citation.id)
    return { pandoc.Strong("?@" .. citation.id) }
  end
  local address = (entry.page == page.href and "" or page.to_root .. entry.page) .. "#" .. id
  local link = pandoc.Link({ pandoc.Str(text_of(citation, entry)) }, address, "", pandoc.Attr("", { "cross-reference" }))
  return { link, table.unpack(citation.suffix) }
end

local function cite(element)
  local references = element.citations:filter(function(c) return kind_of(c.id:lower()) end)
  if #references == 0 then
    cited = true
    return nil
  end
  if #references < #element.citations then
    problem("@" .. references[1].id .. " stands in brackets with a citation; give each brackets of its own")
    return nil
  end
  local result = pandoc.Inlines({})
  for i, citation in ipairs(element.citations) do
    if i > 1 then result:extend({ pandoc.Str(","), pandoc.Space() }) end
    result:extend(reference(citation))
  end
  return result
end

-- [text](02-precision.qmd#sec-x): the address of the rendered page; and links must lead somewhere.
local function link(element)
  if element.target:match("^%a[%w+.-]*:") then return nil end
  local path, anchor = element.target:match("^([^#]*)#?(.*)$")
  local name, target = page.name, element.target
  if path ~= "" then
    if not path:match("%.qmd$") then return nil end
    local folder = page.name:match("^(.*/)[^/]*$") or ""
    name = pandoc.path.normalize(path:sub(1, 1) == "/" and path:sub(2) or folder .. path):gsub("[^/]+/%.%./", "")
    if not book.anchors[name] then
      problem("the link " .. element.target .. " leads to no page of the book")
      return nil
    end
    target = path:sub(1, 1) == "/" and page.to_root .. path:sub(2) or path
    target = target:gsub("%.qmd$", ".html") .. (anchor ~= "" and "#" .. anchor or "")
  end
  if anchor ~= "" and not book.anchors[name][anchor] then
    problem("the link " .. element.target .. " leads to no label")
  end
  element.target = target
  return element
end

function Pandoc(doc)
  doc = doc:walk({ Link = link })
  doc = doc:walk({ Cite = cite })
  if cited then
    doc.blocks:insert(pandoc.Header(2, "References", pandoc.Attr("references", { "unnumbered" })))
    doc.blocks:insert(pandoc.Div({}, pandoc.Attr("refs")))
  end
  doc.meta.preview = nil
  return doc
end
