/* Draws the report's figures as SVG. A panel is plain data: two axes and a list of marks (see
   bayrace/report/document.py). Colours come from CSS, so a change of theme needs no redrawing. */
"use strict";
const BayraceChart = (() => {
  const { format, limits, scaleOf } = BayraceScale;
  const NS = "http://www.w3.org/2000/svg";
  const FONT = '12px "Inter", system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
  const measuring = document.createElement("canvas").getContext("2d");
  let clips = 0;

  function make(name, attributes, parent, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function textWidth(text) {
    measuring.font = FONT;
    return measuring.measureText(text).width;
  }

  function shortened(text, width) {
    if (textWidth(text) <= width) return text;
    let kept = text;
    while (kept.length > 4 && textWidth(kept + "…") > width) kept = kept.slice(0, -1);
    return kept + "…";
  }

  /* Legend: rows of swatches above the plot */

  function legendItems(panel) {
    const items = [];
    const seen = new Set();
    let shade = 0;
    for (const mark of panel.marks) {
      const name = mark.series || (mark.kind === "band" && mark.names ? mark.names[0] : "");
      if (mark.kind === "band") shade += 1;
      if (!name || mark.kind === "intervals" || seen.has(name)) continue;
      seen.add(name);
      items.push({ name, mark, shade });
    }
    return items;
  }

  function drawLegend(svg, panel, width) {
    const group = make("g", { class: "legend" }, svg);
    let [x, y] = [0, 12];
    for (const { name, mark, shade } of legendItems(panel)) {
      const text = shortened(name, width - 24);
      const needed = 24 + textWidth(text) + 14;
      if (x > 0 && x + needed - 14 > width) [x, y] = [0, y + 19];
      const item = make("g", { transform: `translate(${x},${y})` }, group);
      const colour = `c${mark.colour}`;
      if (mark.kind === "points") make("path", { class: `points large ${colour}`, d: "M8 0h0" }, item);
      else if (mark.kind === "band") {
        for (let n = 0; n < shade; n++) make("rect", { class: "band", x: 0, y: -6, width: 17, height: 12 }, item);
      } else if (mark.kind === "bars") make("rect", { class: `bars ${colour}`, x: 0, y: -5, width: 16, height: 10 }, item);
      else make("path", { class: `line ${mark.style || ""} ${colour}`, d: "M0 0H17" }, item);
      make("text", { class: "legend-text", x: 23, y: 4 }, item, text);
      x += needed;
    }
    return group.childNodes.length ? y + 18 : 4;
  }

  /* Marks */

  function path(mark, sx, sy) {
    let [text, pen] = ["", "M"];
    for (let n = 0; n < mark.x.length; n++) {
      if (mark.y[n] === null) { pen = "M"; continue; }
      text += `${pen}${sx(mark.x[n]).toFixed(1)} ${sy(mark.y[n]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  const painters = {
    diagonal(group, mark, sx, sy) {
      make("path", { class: "line dashed c0", d: `M${sx(sx.low)} ${sy(sx.low)}L${sx(sx.high)} ${sy(sx.high)}` }, group);
    },
    band(group, mark, sx, sy) {
      const up = mark.x.map((x, n) => `${sx(x).toFixed(1)} ${sy(mark.high[n]).toFixed(1)}`);
      const down = mark.x.map((x, n) => `${sx(x).toFixed(1)} ${sy(mark.low[n]).toFixed(1)}`).reverse();
      make("path", { class: "band", d: `M${up.join("L")}L${down.join("L")}Z` }, group);
    },
    line(group, mark, sx, sy) {
      const style = `line ${mark.style || ""} c${mark.colour}`;
      make("path", { class: style, d: path(mark, sx, sy) }, group);
      if (mark.style !== "dots") return;
      mark.x.forEach((x, n) => make("circle", { class: `dot c${mark.colour}`, r: 4.5, cx: sx(x).toFixed(1), cy: sy(mark.y[n]).toFixed(1) }, group));
    },
    bars(group, mark, sx, sy) {
      let text = `M${sx(mark.x[0]).toFixed(1)} ${sy(0).toFixed(1)}`;
      mark.y.forEach((y, n) => { text += `V${sy(y).toFixed(1)}H${sx(mark.x[n + 1]).toFixed(1)}`; });
      make("path", { class: `bars c${mark.colour}`, d: `${text}V${sy(0).toFixed(1)}Z` }, group);
    },
    intervals(group, mark, sx, sy) {
      let [bars, dots, crosses] = ["", "", ""];
      mark.place.forEach((place, n) => {
        const x = sx(place).toFixed(1);
        const y = sy(mark.y[n]);
        bars += `M${x} ${sy(mark.low[n]).toFixed(1)}V${sy(mark.high[n]).toFixed(1)}`;
        if (mark.y[n] >= mark.low[n] && mark.y[n] <= mark.high[n]) dots += `M${x} ${y.toFixed(1)}h0`;
        else crosses += `M${x - 3} ${(y - 3).toFixed(1)}l6 6m0 -6l-6 6`;
      });
      const gap = Math.abs(sx(1) - sx(0));
      make("path", { class: `interval c${mark.colour}`, d: bars, "stroke-width": Math.max(1, Math.min(5, gap * 0.6)).toFixed(1) }, group);
      if (dots) make("path", { class: "inside", d: dots }, group);
      if (crosses) make("path", { class: "outside", d: crosses }, group);
    },
    columns(group, mark, sx, sy, row) {
      const top = row * 36;
      const width = Math.max(1, sx(mark.y[0]) - sx(0));
      make("text", { class: "row", x: sx(0), y: top + 13 }, group, shortened(mark.names[0], sx.end - sx(0)));
      make("rect", { class: `column ${mark.style || ""} c${mark.colour}`, x: sx(0), y: top + 19, width, height: 11 }, group);
      make("text", { class: "row-value", x: sx(0) + width + 6, y: top + 28.5 }, group, format(mark.y[0]));
    },
  };

  /* Points of all sets in turns, so that no set hides another; in pieces, so that density shows. */
  function drawPoints(group, marks, sx, sy) {
    const total = marks.reduce((sum, mark) => sum + mark.x.length, 0);
    const size = total > 1500 ? "small" : total > 300 ? "medium" : "large";
    const pieces = [];
    const rounds = 60;
    for (let round = 0; round < rounds; round++) {
      for (const mark of marks) {
        let text = "";
        for (let n = round; n < mark.x.length; n += rounds) {
          const [x, y] = [sx(mark.x[n]), sy(mark.y[n])];
          if (isFinite(x) && isFinite(y)) text += `M${x.toFixed(1)} ${y.toFixed(1)}h0`;
        }
        if (text) pieces.push([mark, text]);
      }
    }
    for (const [mark, d] of pieces) make("path", { class: `points ${size} c${mark.colour}`, d }, group);
  }

  /* Axes */

  function drawAxes(svg, panel, sx, sy, box) {
    const axes = make("g", { class: "axes" }, svg);
    for (const [value, text] of sx.ticks) {
      const x = sx(value).toFixed(1);
      make("path", { class: "grid-line", d: `M${x} ${box.top}V${box.bottom}` }, axes);
      const most = svg.getAttribute("width") - textWidth(text) / 2 - 1; // the last one is not cut off
      const at = Math.min(x, most).toFixed(1);
      make("text", { class: "tick", x: at, y: box.bottom + 17, "text-anchor": "middle" }, axes, text);
    }
    if (sy) {
      for (const [value, text] of sy.ticks) {
        const y = sy(value);
        make("path", { class: "grid-line", d: `M${box.left} ${y.toFixed(1)}H${box.right}` }, axes);
        make("text", { class: "tick", x: box.left - 7, y: (y + 4).toFixed(1), "text-anchor": "end" }, axes, text);
      }
    }
    for (const value of sx.minor || []) make("path", { class: "minor", d: `M${sx(value).toFixed(1)} ${box.bottom}v4` }, axes);
    for (const value of (sy && sy.minor) || []) make("path", { class: "minor", d: `M${box.left} ${sy(value).toFixed(1)}h-4` }, axes);
    make("path", { class: "axis", d: `M${box.left} ${sy ? box.top : box.bottom}V${box.bottom}H${box.right}` }, axes);
    const wide = textWidth(title(panel.x)) > box.right - box.left;
    const middle = (wide ? svg.getAttribute("width") - 0 : box.left + box.right) / 2;
    make("text", { class: "axis-label x-label", x: middle, y: box.bottom + 38, "text-anchor": "middle" }, axes, title(panel.x));
    if (sy) {
      const at = `translate(13,${(box.top + box.bottom) / 2}) rotate(-90)`;
      make("text", { class: "axis-label y-label", transform: at, "text-anchor": "middle" }, axes, title(panel.y));
    }
  }

  function title(axis) {
    return axis.unit ? `${axis.label} (${axis.unit})` : axis.label;
  }

  /* The whole figure */

  function draw(element, given, order) {
    const place = (mark) => (mark.kind === "intervals" && order === 1 ? mark.other_x : mark.x);
    const panel = { ...given, marks: given.marks.map((mark) => ({ ...mark, place: place(mark) })) };
    const width = Math.max(240, Math.floor(element.clientWidth));
    element.textContent = "";
    const svg = make("svg", { width, role: "img", class: "figure" }, element);
    make("title", {}, svg, `${panel.title}: ${title(panel.y) || "names"} against ${title(panel.x)}`);
    const top = drawLegend(svg, panel, width);
    const named = panel.y.scale === "names";
    let [xs, ys] = [limits(panel, panel.x, "x"), named ? null : limits(panel, panel.y, "y")];
    if (panel.square) xs = ys = [Math.min(xs[0], ys[0]), Math.max(xs[1], ys[1])];
    const labels = named ? [] : scaleOf(panel.y)(ys, [1, 0], 6).ticks.map(([, text]) => textWidth(text));
    const left = named ? 14 : Math.ceil(Math.max(...labels, 12)) + 32;
    const right = width - 12;
    const inner = right - left;
    const height = named ? panel.marks.length * 36 + 6 : panel.square ? Math.min(inner, 420) : Math.min(330, Math.max(210, inner * 0.62));
    const centred = panel.square && inner > height ? (inner - height) / 2 : 0;
    const box = { left: left + centred, right: right - centred, top, bottom: top + height };
    svg.setAttribute("height", Math.ceil(box.bottom + 46));
    svg.setAttribute("viewBox", `0 0 ${width} ${Math.ceil(box.bottom + 46)}`);
    if (named) xs[1] *= 1.15;
    const sx = scaleOf(panel.x)(xs, [box.left, box.right], Math.max(2, (box.right - box.left) / (panel.square ? 60 : 75)));
    [sx.low, sx.high, sx.end] = [...xs, box.right];
    const sy = named ? null : scaleOf(panel.y)(ys, [box.bottom, box.top], Math.max(3, height / (panel.square ? 60 : 50)));
    drawAxes(svg, panel, sx, sy, box);
    drawMarks(svg, panel, sx, sy, box);
    if (!named) listen(svg, element, panel, sx, sy, box);
  }

  function drawMarks(svg, panel, sx, sy, box) {
    const id = `clip${++clips}`;
    const clip = make("clipPath", { id }, make("defs", {}, svg));
    make("rect", { x: box.left - 1, y: box.top - 1, width: box.right - box.left + 2, height: box.bottom - box.top + 2 }, clip);
    const group = make("g", { class: "marks", "clip-path": `url(#${id})` }, svg);
    if (!sy) group.setAttribute("transform", `translate(0,${box.top})`), group.removeAttribute("clip-path");
    const of = (test) => panel.marks.filter(test);
    of((mark) => mark.kind === "band").forEach((mark) => painters.band(group, mark, sx, sy));
    drawPoints(group, of((mark) => mark.kind === "points"), sx, sy);
    of((mark) => !["band", "points"].includes(mark.kind)).forEach((mark, row) => painters[mark.kind](group, mark, sx, sy, row));
  }

  /* Tooltips: the nearest thing within reach */

  function nearest(panel, sx, sy, x, y) {
    let [best, reach] = [null, 18 ** 2];
    for (const mark of panel.marks) {
      if (["band", "bars", "diagonal"].includes(mark.kind) || mark.fit === false && mark.style !== "dots") continue;
      for (let n = 0; n < mark.y.length; n++) {
        const distance = (sx(mark.place[n]) - x) ** 2 + (sy(mark.y[n]) - y) ** 2;
        if (distance < reach) [best, reach] = [{ mark, n, x: mark.place[n] }, distance];
      }
    }
    return best;
  }

  function words(panel, { mark, n, x }) {
    const lines = [mark.series.split(": RMSE")[0]];
    if (mark.names && mark.names[n]) lines.push((mark.style === "dots" ? "" : "frame ") + mark.names[n]);
    if (mark.kind !== "intervals") lines.push(`${panel.x.label}: ${format(x)} ${panel.x.unit}`);
    lines.push(`${panel.y.label}: ${format(mark.y[n])} ${panel.y.unit}`);
    if (mark.kind === "intervals") lines.push(`interval: ${format(mark.low[n])} … ${format(mark.high[n])} ${panel.y.unit}`);
    return lines.filter(Boolean);
  }

  function listen(svg, element, panel, sx, sy, box) {
    const tip = document.getElementById("tip") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
    const ring = make("circle", { class: "ring", r: 6, visibility: "hidden" }, svg);
    const hide = () => { tip.style.display = "none"; ring.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      const inside = x >= box.left - 4 && x <= box.right + 4 && y >= box.top - 4 && y <= box.bottom + 4;
      const found = inside && nearest(panel, sx, sy, x, y);
      if (!found) return hide();
      const [px, py] = [sx(found.x), sy(found.mark.y[found.n])];
      ring.setAttribute("cx", px);
      ring.setAttribute("cy", py);
      ring.setAttribute("visibility", "visible");
      tip.replaceChildren(...words(panel, found).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
      tip.style.display = "block";
      const left = Math.min(frame.left + px + 14, innerWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left) + scrollX}px`;
      tip.style.top = `${frame.top + py - tip.offsetHeight - 12 + scrollY}px`;
    });
  }

  /* A figure by itself: what CSS says is written into every element. */
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const wanted = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity", "font-size", "font-family", "font-weight"];
    const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((node, n) => {
      const style = getComputedStyle(node);
      to[n].setAttribute("style", wanted.map((key) => `${key}:${style.getPropertyValue(key)}`).join(";"));
    });
    copy.setAttribute("xmlns", NS);
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    return new XMLSerializer().serializeToString(copy);
  }

  return { draw, format, standalone };
})();
