/* The worst structures: 3Dmol where there is WebGL, else a flat drawing; beside it the atoms. */
"use strict";
const BayraceViewer = (() => {
  /* Blue to orange: apart for every kind of colour vision, and visible on white and on black. */
  const STOPS = [[38, 105, 190], [117, 141, 196], [186, 160, 166], [224, 132, 76], [205, 72, 10]];
  const MANY = 60; // atoms beyond which labels hide more than they show
  const LONGEST = 1.4; // Å, of the longest error arrow
  const $ = (id) => document.getElementById(id);

  function colour(value, top) {
    if (value === null || !(top > 0)) return "rgb(140,140,140)";
    const place = Math.min(1, Math.max(0, value / top)) * (STOPS.length - 1);
    const n = Math.min(STOPS.length - 2, Math.floor(place));
    const mixed = STOPS[n].map((low, k) => Math.round(low + (STOPS[n + 1][k] - low) * (place - n)));
    return `rgb(${mixed.join(",")})`;
  }

  const hex = (text) => "0x" + text.match(/\d+/g).map((part) => Number(part).toString(16).padStart(2, "0")).join("");
  const length = (vector) => Math.hypot(...vector);

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function webgl() {
    try {
      const canvas = document.createElement("canvas");
      return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
    } catch (error) {
      return false;
    }
  }

  function start(structures) {
    const state = { structures, shown: 0, viewer: null, flat: false };
    try {
      if (webgl()) state.viewer = window["3Dmol"].createViewer($("viewer"), { backgroundColor: css("--panel"), antialias: true });
    } catch (error) {
      state.viewer = null;
    }
    state.flat = !state.viewer;
    if (state.flat) $("viewer-frame").insertAdjacentHTML("beforeend", '<p class="fallback">This browser offers no WebGL: a flat drawing is shown instead of the 3D view.</p>');
    document.querySelectorAll("[data-structure]").forEach((button) => button.addEventListener("click", () => show(state, Number(button.dataset.structure))));
    for (const id of ["arrows", "labels"]) $(id).addEventListener("change", () => paint(state));
    $("local-switch").hidden = !structures.some((each) => each.local);
    $("local").addEventListener("change", () => show(state, state.shown));
    // The wheel scrolls the page; with Ctrl it zooms.
    $("viewer").addEventListener("wheel", (event) => { if (!event.ctrlKey) event.stopPropagation(); }, true);
    new ResizeObserver(() => state.viewer && state.viewer.resize()).observe($("viewer"));
    show(state, 0);
    return {
      recolour: () => paint(state),
      atoms: () => (state.flat ? document.querySelectorAll("#viewer circle").length : state.viewer.selectedAtoms({}).length),
      flat: state.flat,
    };
  }

  /* What colours mean: σ of forces, or of the energies of atoms. */
  const MEANINGS = {
    spread: { name: "force σ", unit: "meV/Å", missing: "No force uncertainty is predicted." },
    local: { name: "σ of atomic energies", unit: "meV", missing: "No uncertainty of atomic energies is predicted." },
  };

  function show(state, place) {
    state.shown = place;
    state.by = $("local").checked ? "local" : "spread";
    state.top = Math.max(0, ...state.structures.flatMap((each) => each[state.by] || []));
    document.querySelectorAll("[data-structure]").forEach((button) => button.setAttribute("aria-selected", String(Number(button.dataset.structure) === place)));
    const structure = state.structures[place];
    $("structure-detail").textContent = structure.detail;
    $("labels").checked = structure.symbols.length <= MANY;
    list(state, structure);
    legend(state, structure);
    load(state, structure);
    paint(state);
  }

  function load(state, structure) {
    if (state.flat) return;
    const lines = structure.symbols.map((symbol, n) => `${symbol} ${structure.positions[n].join(" ")}`);
    state.viewer.removeAllModels();
    state.viewer.addModel(`${lines.length}\n\n${lines.join("\n")}\n`, "xyz");
  }

  function paint(state) {
    const structure = state.structures[state.shown];
    if (state.flat) return flat(state, structure);
    const viewer = state.viewer;
    const colours = structure.symbols.map((_, n) => hex(colour(structure[state.by] ? structure[state.by][n] : null, state.top)));
    const colorfunc = (atom) => colours[atom.index];
    viewer.setBackgroundColor(hex(rgb("--panel")));
    viewer.setStyle({}, { stick: { radius: 0.11, colorfunc }, sphere: { scale: 0.25, colorfunc } });
    viewer.removeAllShapes();
    viewer.removeAllLabels();
    if (state.zoomed !== state.shown) face(state, structure);
    state.zoomed = state.shown;
    if (structure.cell) box(viewer, structure.cell);
    if ($("arrows").checked && structure.error) arrows(viewer, structure);
    if ($("labels").checked) labels(viewer, structure);
    viewer.render();
  }

  /* Look along the direction in which the structure is thinnest, a little from the side. */
  function face(state, structure) {
    const viewer = state.viewer;
    state.view = state.view || viewer.getView();
    viewer.setView(state.view);
    const depth = thinnest(structure);
    if (depth < 2) viewer.rotate(90, depth === 0 ? "y" : "x");
    viewer.rotate(12, "x");
    viewer.rotate(-14, "y");
    viewer.zoomTo();
    viewer.zoom(structure.symbols.length <= 12 ? 1.5 : 0.95); // 3Dmol keeps small ones small
  }

  function thinnest(structure) {
    const spans = [0, 1, 2].map((k) => Math.max(...structure.positions.map((p) => p[k])) - Math.min(...structure.positions.map((p) => p[k])));
    return spans.indexOf(Math.min(...spans));
  }

  function rgb(name) {
    const probe = document.body.appendChild(document.createElement("span"));
    probe.style.color = `var(${name})`;
    const text = getComputedStyle(probe).color;
    probe.remove();
    return text.match(/\d+/g).slice(0, 3).join(",");
  }

  const vector = ([x, y, z]) => ({ x, y, z });

  function arrows(viewer, structure) {
    const scale = LONGEST / Math.max(...structure.error.map(length), 1e-9);
    structure.error.forEach((error, n) => {
      if (length(error) * scale < 0.05) return;
      const from = structure.positions[n];
      const to = from.map((x, k) => x + error[k] * scale);
      viewer.addArrow({ start: vector(from), end: vector(to), radius: 0.07, radiusRatio: 2.2, mid: 0.72, color: hex(rgb("--ink")) });
    });
  }

  function labels(viewer, structure) {
    structure.symbols.forEach((symbol, n) => viewer.addLabel(`${symbol}${n}`, {
      position: vector(structure.positions[n]), fontSize: 12, fontColor: hex(rgb("--ink")), backgroundColor: hex(rgb("--panel")),
      backgroundOpacity: 0.35, borderThickness: 0, inFront: true, alignment: "center", screenOffset: { x: 14, y: 12 },
    }));
  }

  function box(viewer, cell) {
    const corner = (bits) => [0, 1, 2].map((k) => bits.reduce((sum, bit, row) => sum + bit * cell[row][k], 0));
    for (let axis = 0; axis < 3; axis++) {
      for (const [p, q] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
        const bits = [p, q];
        bits.splice(axis, 0, 0);
        const end = [...bits];
        end[axis] = 1;
        viewer.addLine({ start: vector(corner(bits)), end: vector(corner(end)), color: hex(rgb("--muted")) });
      }
    }
  }

  /* Without WebGL: seen along the direction in which the structure is thinnest of x, y, z. */
  function flat(state, structure) {
    const depth = thinnest(structure);
    const [u, v] = [0, 1, 2].filter((k) => k !== depth);
    const order = structure.symbols.map((_, n) => n).sort((a, b) => structure.positions[a][depth] - structure.positions[b][depth]);
    const xs = structure.positions.map((p) => p[u]), ys = structure.positions.map((p) => -p[v]);
    const pad = 1.6;
    const view = [Math.min(...xs) - pad, Math.min(...ys) - pad, Math.max(...xs) - Math.min(...xs) + 2 * pad, Math.max(...ys) - Math.min(...ys) + 2 * pad];
    const scale = structure.error ? LONGEST / Math.max(...structure.error.map(length), 1e-9) : 0;
    const parts = order.map((n) => {
      const fill = colour(structure[state.by] ? structure[state.by][n] : null, state.top);
      const radius = structure.symbols[n] === "H" ? 0.26 : 0.4;
      let text = `<circle cx="${xs[n]}" cy="${ys[n]}" r="${radius}" fill="${fill}" stroke="var(--ink)" stroke-width=".03"/>`;
      if ($("arrows").checked && structure.error) {
        const [dx, dy] = [structure.error[n][u] * scale, -structure.error[n][v] * scale];
        text += `<path d="M${xs[n]} ${ys[n]}l${dx} ${dy}" stroke="var(--ink)" stroke-width=".08" stroke-linecap="round"/>`;
      }
      return text;
    });
    if ($("labels").checked) parts.push(...order.map((n) => `<text x="${xs[n] + 0.28}" y="${ys[n] + 0.62}" class="atom-label">${structure.symbols[n]}${n}</text>`));
    $("viewer").innerHTML = `<svg viewBox="${view.join(" ")}" role="img" aria-label="${structure.symbols.length} atoms, flat drawing">${parts.join("")}</svg>`;
  }

  function legend(state, structure) {
    const stops = STOPS.map((each) => `rgb(${each.join(",")})`).join(",");
    const { name, unit, missing } = MEANINGS[state.by];
    const bar = structure[state.by]
      ? `<span>${name}</span><span>0</span><span class="gradient" style="background:linear-gradient(90deg,${stops})"></span><span>${BayraceChart.format(state.top)} ${unit}</span>`
      : `<span>${missing}</span>`;
    const longest = structure.error ? `<span>longest arrow: ${BayraceChart.format(Math.max(...structure.error.map(length)))} meV/Å</span>` : "";
    $("viewer-legend").innerHTML = bar + longest;
  }

  function list(state, structure) {
    const format = BayraceChart.format;
    const rows = structure.symbols.map((symbol, n) => ({ n, symbol, error: structure.error && length(structure.error[n]), spread: structure[state.by] && structure[state.by][n] }));
    rows.sort((a, b) => (b.error || 0) - (a.error || 0));
    const cells = rows.map(({ n, symbol, error, spread }) => `<tr><td class="text"><i style="background:${colour(spread, state.top)}"></i>${symbol}${n}</td><td class="number">${format(error)}</td><td class="number">${format(spread)}</td></tr>`);
    $("atoms").innerHTML = `<table><thead><tr><th class="text">atom</th><th class="number">|error|</th><th class="number">σ</th></tr></thead><tbody>${cells.join("")}</tbody></table>`;
  }

  return { start };
})();
