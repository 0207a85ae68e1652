"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);

  /* Elements are made by name, and text is always text: a constraint may be called anything. */
  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "path", "line", "text", "rect", "g", "circle"].includes(tag);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
    return String(Number(value.toPrecision(4)));
  }

  /* A scale is linear, or, where a run spans many orders of magnitude, that of asinh: linear about 0, then log. */
  function scale(values) {
    const seen = values.filter((v) => v !== null).sort((a, b) => a - b);
    let low = seen.length ? seen[0] : 0;
    let high = seen.length ? seen[seen.length - 1] : 1;
    const sizes = seen.map(Math.abs).sort((a, b) => a - b);
    const middle = sizes[Math.floor(sizes.length / 2)] || 0;
    const largest = sizes[sizes.length - 1] || 0;
    const unit = largest > 300 * middle && middle > 0 ? middle : 0;
    if (low === high) { low -= Math.abs(low) * 0.5 || 1; high += Math.abs(high) * 0.5 || 1; }
    const bend = unit ? (v) => Math.asinh(v / unit) : (v) => v;
    const [from, to] = [bend(low), bend(high)];
    const pad = (to - from) * 0.05;
    return { low, high, bent: unit > 0, at: (v) => (bend(v) - from + pad) / (to - from + 2 * pad) };
  }

  const WIDE = 320, HIGH = 190, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 22;
  const across = (share) => LEFT + share * (WIDE - LEFT - RIGHT);
  const up = (share) => HIGH - BOTTOM - share * (HIGH - TOP - BOTTOM);

  function path(xs, ys) {
    let drawn = "", pen = false;
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] === null || ys[i] === null) { pen = false; continue; }
      drawn += (pen ? "L" : "M") + xs[i].toFixed(1) + " " + ys[i].toFixed(1);
      pen = true;
    }
    return drawn;
  }

  function band(xs, low, high) {
    const places = [];
    for (let i = 0; i < xs.length; i++) if (low[i] !== null && high[i] !== null && xs[i] !== null) places.push(i);
    if (places.length < 2) return "";
    const one = places.map((i) => xs[i].toFixed(1) + " " + low[i].toFixed(1));
    const other = places.map((i) => xs[i].toFixed(1) + " " + high[i].toFixed(1)).reverse();
    return "M" + one.join("L") + "L" + other.join("L") + "Z";
  }

  function frame(label, y, x, whole = false) {
    const svg = make("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: "0", "aria-label": label });
    svg.append(make("path", { class: "axis", d: `M${LEFT} ${TOP}V${HIGH - BOTTOM}H${WIDE - RIGHT}` }));
    const ends = [[y.low, up(y.at(y.low))], [y.high, up(y.at(y.high))]];
    if (y.low < 0 && y.high > 0) {
      const zero = up(y.at(0));
      svg.append(make("line", { class: "zero", x1: LEFT, x2: WIDE - RIGHT, y1: zero, y2: zero }));
      if (Math.abs(zero - ends[0][1]) > 14 && Math.abs(zero - ends[1][1]) > 14) ends.push([0, zero]);
    }
    for (const [value, place] of ends) {
      svg.append(make("text", { x: LEFT - 4, y: place + 4, "text-anchor": "end" }, number(value)));
    }
    const said = (value) => (whole ? Math.round(value).toLocaleString("en") : number(value));
    svg.append(make("text", { x: LEFT, y: HIGH - 6 }, said(x.low)));
    svg.append(make("text", { x: WIDE - RIGHT, y: HIGH - 6, "text-anchor": "end" }, said(x.high)));
    return svg;
  }

  function reader(svg, count, placeOf, textOf, output) {
    const cursor = make("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM });
    svg.append(cursor);
    let now = count - 1;
    const show = (i) => {
      now = Math.max(0, Math.min(count - 1, i));
      const x = placeOf(now);
      if (x === null || Number.isNaN(x)) return;
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
      output.textContent = textOf(now);
    };
    const hide = () => { cursor.style.visibility = "hidden"; output.textContent = ""; };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * WIDE;
      let best = 0;
      for (let i = 0; i < count; i++) if (Math.abs(placeOf(i) - x) < Math.abs(placeOf(best) - x)) best = i;
      show(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("focus", () => show(now));
    svg.addEventListener("keydown", (event) => {
      const leap = event.shiftKey ? 20 : 1;
      const to = { ArrowLeft: now - leap, ArrowRight: now + leap, Home: 0, End: count - 1 }[event.key];
      if (to !== undefined) { show(to); event.preventDefault(); }
    });
  }

  function line(curve, what, marks) {
    const { mean, low, high } = curve[what];
    const x = scale(curve.steps), y = scale([...low, ...high, ...mean, what === "violation" ? 0 : null]);
    const label = `${what} of ${curve.name} from step ${number(x.low)} to ${number(x.high)}: between ` +
      `${number(y.low)} and ${number(y.high)}, at the end ${number(mean[mean.length - 1])}`;
    const svg = frame(label, y, x, true);
    const xs = curve.steps.map((s) => (s === null ? null : across(x.at(s))));
    const level = (v) => (v === null ? null : up(y.at(v)));
    const words = [];
    for (const mark of marks) {
      const from = across(Math.max(0, x.at(mark.steps[0]))), to = across(Math.min(1, x.at(mark.steps[1])));
      if (to > from) {
        svg.prepend(make("rect", { class: "mark", x: from, y: TOP, width: to - from, height: HIGH - TOP - BOTTOM }));
        words.push(make("text", { class: "over", x: from + 3, y: TOP + 11 }, mark.kind));
      }
    }
    const color = `var(--${what})`;
    svg.append(make("path", { d: band(xs, low.map(level), high.map(level)), fill: color, opacity: 0.2 }));
    svg.append(make("path", { d: path(xs, mean.map(level)), fill: "none", stroke: color, "stroke-width": 1.6 }));
    svg.append(...words);
    const output = make("output");
    reader(svg, xs.length, (i) => xs[i], (i) => `step ${number(curve.steps[i])}: ${number(mean[i])}` +
      (low[i] !== high[i] ? ` (${number(low[i])} to ${number(high[i])})` : ""), output);
    const caption = what[0].toUpperCase() + what.slice(1) + " over steps" + (y.bent ? ", asinh scale" : "");
    return make("figure", {}, make("figcaption", {}, caption), svg, output);
  }

  function phase(curve) {
    const [theta, e] = curve.phase;
    const x = scale(theta), y = scale([...e, 0]);
    const svg = frame(`phase plot of ${curve.name}: violation against multiplier, over the last steps`, y, x);
    const xs = theta.map((v) => (v === null ? null : across(x.at(v)))), ys = e.map((v) => (v === null ? null : up(y.at(v))));
    svg.append(make("path", { d: path(xs, ys), fill: "none", stroke: "var(--phase)", "stroke-width": 1.2 }));
    const last = xs.length - 1;
    if (last >= 0 && xs[last] !== null && ys[last] !== null) {
      svg.append(make("circle", { cx: xs[last], cy: ys[last], r: 3.5, fill: "var(--phase)" }));
    }
    const output = make("output");
    reader(svg, xs.length, (i) => xs[i], (i) => `multiplier ${number(theta[i])}, violation ${number(e[i])}`, output);
    return make("figure", {}, make("figcaption", {}, "Violation against multiplier; the dot is the last step"), svg, output);
  }

  function showFindings() {
    const verdict = find("verdict");
    verdict.textContent = data.verdict.text;
    verdict.className = data.verdict.level;
    document.title = "nupi: " + data.verdict.text;
    const list = find("finding-list");
    for (const finding of data.findings) {
      list.append(make("li", { class: `finding ${finding.severity}` },
        make("p", {}, make("span", { class: "kind" }, `${finding.kind} (${finding.severity})`), ` · ${finding.constraint}`),
        make("p", {}, finding.evidence[0].toUpperCase() + finding.evidence.slice(1) + "."),
        make("p", {}, make("strong", {}, finding.advice + "."))));
    }
    if (!data.findings.length) list.append(make("li", {}, "None."));
  }

  function showPlots() {
    const place = find("plots");
    for (const curve of data.curves) {
      const whole = curve.name.replace(/\[[^\]]*\]$/, "");
      const marks = data.findings.filter((f) => f.constraint === curve.name || f.constraint === whole);
      const title = curve.name + (curve.group ? ` (${curve.group.toLocaleString("en")} constraints: mean, minimum, maximum)` : "");
      place.append(make("section", { class: "constraint" }, make("h3", {}, title),
        make("div", { class: "row" }, line(curve, "violation", marks), line(curve, "multiplier", marks), phase(curve))));
    }
    if (!data.curves.length) place.append(make("p", {}, "Nothing has been recorded yet."));
  }

  function showGains() {
    const place = find("gains");
    for (const gains of data.gains) {
      const said = Object.entries(gains.latest).map(([name, value]) => `${name} ${number(value)}`).join(", ");
      place.append(make("p", {}, make("strong", {}, gains.kind), ` on ${gains.names || "no constraint"}: ${said || "no gains"}`));
      const row = make("div", { class: "row" });
      for (const [name, values] of Object.entries(gains.history)) {
        const seen = new Set(values);
        if (seen.size < 2) continue;
        const curve = { name, steps: gains.steps, violation: { mean: values, low: values, high: values } };
        const figure = line(curve, "violation", []);
        figure.querySelector("figcaption").textContent = `${name} over steps`;
        row.append(figure);
      }
      place.append(row);
    }
    if (!data.gains.length) place.append(make("p", {}, "No gains were recorded."));
  }

  /* The table shows a page of rows, whatever their number: the browser never lays out more. */
  function showTable() {
    const heads = ["constraint", "kind", "last violation", "minimum", "maximum", "last multiplier", "findings"];
    const PAGE = 50;
    let rows = data.table, page = 0, sorted = -1, down = false;
    const head = make("tr");
    heads.forEach((title, column) => {
      const button = make("button", { type: "button" }, title);
      const cell = make("th", { scope: "col", "aria-sort": "none" }, button);
      button.addEventListener("click", () => {
        down = sorted === column ? !down : column > 1;
        sorted = column;
        for (const other of head.children) other.setAttribute("aria-sort", "none");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        update();
      });
      head.append(cell);
    });
    find("table").tHead.append(head);
    const compare = (a, b) => {
      const [x, y] = [a[sorted], b[sorted]];
      if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
      return (typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    };
    function update() {
      const wanted = find("filter").value.toLowerCase();
      rows = wanted ? data.table.filter((row) => row[0].toLowerCase().includes(wanted)) : data.table.slice();
      if (sorted >= 0) rows.sort(compare);
      page = 0;
      draw();
    }
    function draw() {
      const shown = rows.slice(page * PAGE, (page + 1) * PAGE);
      find("table").tBodies[0].replaceChildren(...shown.map((row) =>
        make("tr", {}, ...row.map((cell) => make("td", {}, typeof cell === "string" ? cell : number(cell))))));
      const from = rows.length ? page * PAGE + 1 : 0;
      find("count").textContent = `${from} to ${page * PAGE + shown.length} of ${rows.length.toLocaleString("en")}`;
      find("back").disabled = page === 0;
      find("on").disabled = (page + 1) * PAGE >= rows.length;
    }
    find("filter").addEventListener("input", update);
    find("back").addEventListener("click", () => { page -= 1; draw(); });
    find("on").addEventListener("click", () => { page += 1; draw(); });
    draw();
  }

  function showInfo() {
    for (const [name, value] of data.info) find("info").append(make("dt", {}, name), make("dd", {}, value));
  }

  showFindings(); showPlots(); showGains(); showTable(); showInfo();
  document.documentElement.dataset.ready = "yes";
})();
