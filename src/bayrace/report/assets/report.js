/* The page: draws every figure, switches the theme, and hands out the embedded numbers. */
"use strict";
const bayraceReport = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const panels = new Map(data.panels.map((panel) => [panel.key, panel]));
  const orders = new Map();

  /* Figures */

  function drawAll() {
    document.querySelectorAll("[data-panel]").forEach((element) => {
      const panel = panels.get(element.dataset.panel);
      const width = element.clientWidth;
      if (element.drawnWidth === width) return;
      element.drawnWidth = width;
      BayraceChart.draw(element, panel, orders.get(panel.key) || 0);
    });
  }

  function addOrders() {
    for (const panel of panels.values()) {
      if (!panel.orders) continue;
      const element = document.querySelector(`[data-panel="${panel.key}"]`);
      const button = document.createElement("button");
      button.type = "button";
      const label = () => { button.textContent = "order: " + panel.orders[orders.get(panel.key) || 0]; };
      button.title = "Change the order of the structures";
      button.addEventListener("click", () => {
        orders.set(panel.key, 1 - (orders.get(panel.key) || 0));
        label();
        element.drawnWidth = 0;
        drawAll();
      });
      label();
      element.parentElement.querySelector(".tools").prepend(button);
    }
  }

  /* Downloads */

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function csv(rows) {
    const cell = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  function panelRows(panel) {
    const keys = ["x", "y", "low", "high"];
    const rows = [["mark", "series", "name", ...keys]];
    for (const mark of panel.marks) {
      const length = Math.max(...keys.map((key) => (mark[key] || []).length));
      for (let n = 0; n < length; n++) {
        const name = mark.names && mark.names[n] !== undefined ? mark.names[n] : "";
        rows.push([mark.kind, mark.series, name, ...keys.map((key) => (mark[key] || [])[n])]);
      }
    }
    return rows;
  }

  function structureRows() {
    const sets = Object.entries(data.numbers.sets);
    const columns = sets.length ? Object.keys(sets[0][1].structures) : [];
    const rows = [["set", "role", ...columns]];
    for (const [name, { role, structures }] of sets) {
      structures.frame.forEach((_, n) => rows.push([name, role, ...columns.map((key) => structures[key][n])]));
    }
    return rows;
  }

  function csvOf(key) {
    const table = data.tables[key];
    return csv(table ? [table.columns, ...table.rows] : panelRows(panels.get(key)));
  }

  function addDownloads() {
    const on = (selector, action) => document.querySelectorAll(selector).forEach((button) => button.addEventListener("click", () => action(button)));
    on("#download-json", () => save("report.json", "application/json", JSON.stringify(data)));
    on("#download-csv", () => save("structures.csv", "text/csv", csv(structureRows())));
    on("[data-csv]", (button) => save(`${button.dataset.csv}.csv`, "text/csv", csvOf(button.dataset.csv)));
    on("[data-svg]", (button) => {
      const svg = document.querySelector(`[data-panel="${button.dataset.svg}"] svg`);
      save(`${button.dataset.svg}.svg`, "image/svg+xml", BayraceChart.standalone(svg));
    });
  }

  /* Theme */

  function dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function addTheme(changed) {
    document.getElementById("theme").addEventListener("click", () => {
      document.documentElement.dataset.theme = dark() ? "light" : "dark";
      changed();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  }

  drawAll();
  addOrders();
  addDownloads();
  const viewer = data.structures.length ? BayraceViewer.start(data.structures) : null;
  addTheme(() => viewer && viewer.recolour());
  new ResizeObserver(drawAll).observe(document.querySelector("main"));
  addEventListener("beforeprint", drawAll);
  return { data, viewer };
})();
