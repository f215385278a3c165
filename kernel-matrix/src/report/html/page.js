"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const details = all("details.cell");
  const links = all(".matrix td a");
  const search = document.getElementById("search");
  const statuses = all("input[name=status]");
  const count = document.getElementById("count");
  const detailsOf = (link) => details[Number(link.hash.slice(2))];

  // Filter: every word of the search, and the statuses that are ticked.
  const matching = new Set(details);
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const ticked = new Set(statuses.filter((box) => box.checked).map((box) => box.value));
    matching.clear();
    for (const cell of details) {
      const { text, status } = cell.dataset;
      const fits = ticked.has(status) && words.every((word) => text.includes(word));
      if (fits) matching.add(cell);
      cell.hidden = !fits;
    }
    for (const link of links) link.classList.toggle("out", !matching.has(detailsOf(link)));
    // Ended branches are folded, unless something there is looked for.
    for (const fold of all("details.ended")) {
      if (words.length && all("a", fold).some((link) => !link.classList.contains("out"))) fold.open = true;
    }
    for (const row of all(".matrix tbody tr:not(.group)")) {
      row.hidden = !all("a", row).some((link) => !link.classList.contains("out"));
    }
    for (const body of all(".matrix tbody")) {
      body.hidden = all("tr:not(.group)", body).every((row) => row.hidden);
    }
    count.textContent = `${matching.size} of ${details.length} cells`;
    document.getElementById("nothing").hidden = matching.size > 0;
    const first = links.find((link) => open(link) && link.checkVisibility()) ?? links.find(open);
    rove(links.find((link) => link.tabIndex === 0 && open(link) && link.checkVisibility()) ?? first);
  }
  const open = (link) => !link.classList.contains("out");

  // One cell of the table is in the order of the Tab key; arrow keys move within the table.
  function rove(to) {
    for (const link of links) link.tabIndex = link === to ? 0 : -1;
  }
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  function move(from, key) {
    const rows = all("tbody tr:not(.group)", from.closest("table")).filter((row) => row.checkVisibility());
    const row = from.closest("tr");
    const line = all("a", row).filter(open);
    if (key === "Home") return line[0];
    if (key === "End") return line.at(-1);
    const [down, right] = step[key];
    // A card has its cells one after the other.
    const cards = getComputedStyle(row).display !== "table-row";
    const along = cards ? down + right : right;
    const across = cards ? 0 : down;
    if (along) {
      const shown = rows.flatMap((each) => all("a", each)).filter(open);
      const next = shown[shown.indexOf(from) + along];
      return cards || next?.closest("tr") === row ? next : undefined;
    }
    const column = from.closest("td").cellIndex;
    for (let at = rows.indexOf(row) + across; rows[at]; at += across) {
      const link = all("a", rows[at].cells[column]).find(open);
      if (link) return link;
    }
    return undefined;
  }
  document.querySelector(".matrix").addEventListener("keydown", (event) => {
    const link = event.target.closest("td a");
    if (!link || event.altKey || event.ctrlKey || event.metaKey) return;
    if (!(event.key in step) && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const to = move(link, event.key);
    if (!to) return;
    rove(to);
    to.focus();
  });

  // Panel with the details of one cell.
  const panel = document.createElement("dialog");
  panel.setAttribute("aria-labelledby", "panel-name");
  const bar = document.createElement("div");
  bar.className = "bar";
  const name = document.createElement("h2");
  name.id = "panel-name";
  const content = document.createElement("div");
  const button = (label, text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  let shown;
  let opener;
  const beside = (by) => () => {
    const order = details.filter((cell) => matching.has(cell));
    const next = order[order.indexOf(shown) + by];
    if (next) fill(next);
  };
  const back = button("Previous cell", "‹", beside(-1));
  const on = button("Next cell", "›", beside(1));
  const shut = button("Close", "×", () => panel.close());
  bar.append(name, back, on, shut);
  panel.append(bar, content);
  document.body.append(panel);

  function fill(cell) {
    shown = cell;
    name.textContent = cell.querySelector(".name").textContent;
    const body = cell.querySelector(".body").cloneNode(true);
    body.removeAttribute("id");
    content.replaceChildren(cell.querySelector(".s").cloneNode(true), body);
    panel.scrollTop = 0;
    const order = details.filter((each) => matching.has(each));
    back.disabled = order[0] === cell;
    on.disabled = order.at(-1) === cell;
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#c']");
    if (event.target === panel) panel.close();
    if (!link || !/^#c\d+$/.test(link.hash)) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    opener = link;
    fill(detailsOf(link));
    panel.showModal();
    shut.focus();
  });
  panel.addEventListener("close", () => {
    const link = links.find((each) => detailsOf(each) === shown);
    const inTable = opener.closest(".matrix") && link;
    if (inTable) rove(link);
    (inTable ? link : opener).focus();
  });
  panel.addEventListener("keydown", (event) => {
    if (event.target.closest("pre")) return;
    if (event.key === "ArrowLeft") back.click();
    if (event.key === "ArrowRight") on.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || panel.open || event.target.matches("input")) return;
    event.preventDefault();
    search.focus();
  });

  for (const each of all("[hidden]", document.querySelector(".filter"))) each.hidden = false;
  document.getElementById("keys").hidden = false;
  for (const table of all(".matrix table")) table.setAttribute("aria-describedby", "keys");
  search.addEventListener("input", filter);
  for (const box of statuses) box.addEventListener("change", filter);
  filter();
})();
