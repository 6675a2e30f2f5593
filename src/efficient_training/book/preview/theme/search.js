// Search over search-index.js, which is fetched when the dialog is first opened (a script, so that file:// works too).
"use strict";

(function () {
  const MOST = 30;
  const dialog = document.querySelector("dialog.search");
  const input = dialog.querySelector("input");
  const list = dialog.querySelector("ol");
  const state = dialog.querySelector(".search-state");
  const root = document.body.dataset.root;
  let index = null;

  const fold = (text) => text.normalize("NFKD").replace(/[\u0300-\u036f]/g, "").toLowerCase();

  function load() {
    if (index) return;
    const script = document.createElement("script");
    script.src = `${root}theme/search-index.js`;
    script.onload = () => {
      index = window.SEARCH_INDEX.map((entry) => ({
        ...entry, foldedHeading: fold(entry.heading), foldedPage: fold(entry.page), foldedText: fold(entry.text),
      }));
      search();
    };
    script.onerror = () => { state.textContent = "The search index could not be read."; };
    document.head.append(script);
  }

  function score(entry, words) {
    let total = 0;
    for (const word of words) {
      const starts = new RegExp(`(^|[^\\p{L}\\p{N}])${word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`, "u");
      let best = 0;
      if (entry.foldedHeading.includes(word)) best = starts.test(entry.foldedHeading) ? 12 : 8;
      if (entry.foldedPage.includes(word)) best += 3;
      if (entry.foldedText.includes(word)) best += starts.test(entry.foldedText) ? 4 : 2;
      if (!best) return 0;
      total += best;
    }
    return total;
  }

  // The text around the first hit, with every hit marked; built from text nodes, never from HTML.
  function snippet(entry, words) {
    const folded = fold(entry.text);
    const places = words.map((word) => folded.indexOf(word)).filter((place) => place >= 0);
    const before = places.length ? Math.max(0, Math.min(...places) - 60) : 0;
    const start = before && entry.text.indexOf(" ", before) + 1;
    const text = (start ? "… " : "") + entry.text.slice(start, start + 180) + (entry.text.length > start + 180 ? " …" : "");
    const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
    const small = document.createElement("small");
    text.split(pattern).forEach((part, number) => {
      const node = number % 2 ? document.createElement("mark") : document.createTextNode(part);
      if (number % 2) node.textContent = part;
      small.append(node);
    });
    return small;
  }

  function search() {
    const words = fold(input.value).split(/\s+/).filter((word) => word.length > 1);
    list.replaceChildren();
    if (!index || !words.length) {
      state.textContent = words.length ? "Reading the index …" : "Type a word or two.";
      return;
    }
    const hits = index.map((entry) => [score(entry, words), entry]).filter(([points]) => points);
    hits.sort((a, b) => b[0] - a[0]);
    state.textContent = hits.length ? `${hits.length} ${hits.length === 1 ? "section" : "sections"}` : "Nothing found.";
    for (const [, entry] of hits.slice(0, MOST)) {
      const link = document.createElement("a");
      link.href = root + entry.href;
      const title = document.createElement("b");
      title.textContent = entry.heading || entry.page;
      link.append(title);
      if (!entry.heading.endsWith(entry.page)) link.append(` · ${entry.page}`);
      link.append(snippet(entry, words));
      const item = document.createElement("li");
      item.append(link);
      list.append(item);
    }
  }

  function open() {
    if (dialog.open) return;
    dialog.showModal();
    input.select();
    load();
    search();
  }

  document.querySelector(".search-button").addEventListener("click", open);
  input.addEventListener("input", search);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
    if ((event.key === "/" && !typing) || (event.key === "k" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      open();
    }
  });
  dialog.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const place = links.indexOf(document.activeElement);
    if (event.key === "Escape") dialog.close(); // at once: a search box would first be emptied
    else if (event.key === "ArrowDown") (links[place + 1] ?? links[0])?.focus();
    else if (event.key === "ArrowUp") (place > 0 ? links[place - 1] : input).focus();
    else if (event.key === "Enter" && document.activeElement === input && links.length) links[0].click();
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("li a")) dialog.close();
  });
})();
