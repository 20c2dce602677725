// Sorting is an addition: without this script every table is complete, in the order the report chose.
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const valueOf = (row, i) => {
    const raw = row.cells[i].dataset.value;
    return raw === undefined || raw === "" ? null : Number(raw);
  };
  heads.forEach((head, i) => {
    if (i === 0) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.title = "Sort by this column";
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => {
        const x = valueOf(a, i), y = valueOf(b, i);
        if (x === null || y === null) return (x === null) - (y === null);
        return up ? x - y : y - x;
      });
      rows.forEach((row) => row.classList.remove("newkind"));
      body.append(...rows);
    });
  });
}
