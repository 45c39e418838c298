// Charts of a report, drawn by uPlot from the data in the page; where that fails, the pictures stay.
"use strict";
(() => {
  const NONE = 65535;
  const root = document.documentElement;
  // A canvas takes no variable of the style sheet: an element is asked what colour comes of it.
  const probe = element("span", document.body);
  function css(name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  }
  const number = value => Math.abs(value) >= 1e6 ? value.toExponential(2)
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));

  // {low, high, data}: two bytes a number; {wide, data}: four (lab/report/charts.py, packed).
  function unpacked({low, high, data, wide}) {
    const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
    const view = new DataView(bytes.buffer), step = (high - low) / (NONE - 1);
    if (wide) {
      return Array.from({length: bytes.length / 4}, (_, i) => {
        const n = view.getFloat32(4 * i, true);
        return isNaN(n) ? null : n;
      });
    }
    return Array.from({length: bytes.length / 2}, (_, i) => {
      const n = view.getUint16(2 * i, true);
      return n === NONE ? null : low + step * n;
    });
  }

  const places = x => Array.isArray(x) ? x : Array.from({length: x.count}, (_, i) => x.first + i * x.step);
  const specOf = id => JSON.parse(document.getElementById(id).querySelector("script").textContent);

  // On dark paper colours are mixed with white.
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function ink(color, alpha = 1) {
    const parts = [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16));
    const [r, g, b] = parts.map(one => Math.round(dark() ? one + 0.4 * (255 - one) : one));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  // Value of a curve at x: for steps the last one before it, else the nearest.
  function at(curve, x, steps) {
    let low = 0, high = curve.x.length - 1;
    if (high < 0 || x < curve.x[0] || x > curve.x[high]) return null;
    while (high - low > 1) { const mid = (low + high) >> 1; if (curve.x[mid] <= x) low = mid; else high = mid; }
    if (curve.x[high] <= x || (!steps && curve.x[high] - x < x - curve.x[low])) low = high;
    return low;
  }

  function element(tag, parent, text, className) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (className) made.className = className;
    parent.append(made);
    return made;
  }

  // A short line of these dashes, beside a name.
  function swatch(parent, dash) {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(drawn.namespaceURI, "path");
    for (const [key, value] of Object.entries({width: 34, height: 6, "aria-hidden": "true"})) drawn.setAttribute(key, value);
    for (const [key, value] of Object.entries({d: "M0 3H34", "stroke-width": 2.5, "stroke-dasharray": dash.join(" ")})) line.setAttribute(key, value);
    drawn.append(line);
    parent.append(drawn);
    return line;
  }

  function star(context, x, y, radius) {
    context.beginPath();
    for (let i = 0; i < 10; i++) {
      const r = i % 2 ? radius * 0.45 : radius, angle = Math.PI * (i / 5 - 0.5);
      context.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
    context.closePath(); context.fill(); context.stroke();
  }

  function build(place, spec) {
    const curves = spec.of ? specOf(`chart-${spec.of}`).groups : spec.groups;
    const groups = spec.groups.map((group, i) => {
      const {x, seeds} = curves[spec.of ? group.of : i], epochs = places(x);
      const moved = group.moved || seeds.map((_, number) => [number, 0]);
      const own = group.middle;
      return {
        ...group,
        on: i < 12,
        seeds: moved.map(([number, moment]) => {
          const y = unpacked(seeds[number].y), training = unpacked(seeds[number].training);
          // A seed that ended earlier than the others ends there.
          const length = 1 + y.findLastIndex((value, j) => value !== null || training[j] !== null);
          return {x: epochs.slice(0, length).map(epoch => epoch - moment), y: y.slice(0, length), training: training.slice(0, length)};
        }),
        middle: own && {x: places(own.x), y: unpacked(own.y), low: unpacked(own.low), high: unpacked(own.high)},
      };
    });
    let zoomed = false, entries = [];
    // Many bands, and many seeds, hide the medians; seeds without a median are all there is to see.
    const drawn = groups.filter(group => group.on).reduce((sum, group) => sum + group.seeds.length, 0);
    const shown = {
      seeds: drawn <= 60 || groups.some(group => !group.middle), training: false, middle: true, band: groups.length <= 4,
    };

    // Each table has an x of its own; uPlot joins them. Series know their group and what they are.
    const tables = [], series = [{}], bands = [];
    const stepped = spec.steps ? {paths: uPlot.paths.stepped({align: 1})} : {};
    function add(table, made) {
      tables.push(table);
      series.push(...made.map((one, i) => {
        // A line of one value would be nothing to see.
        const alone = one.width > 0 && table[i + 1].filter(value => value !== null).length === 1;
        return {points: {show: alone, size: 6, fill: one.stroke}, spanGaps: true, ...stepped, ...one};
      }));
    }
    // In the order of drawing: no seed lies above a median, of whatever setting.
    const medians = groups.filter(group => group.middle);
    for (const group of medians) {
      const {x, low, high} = group.middle, first = series.length;
      add([x, low, high], [0, 1].map(() => ({group, part: "band", stroke: "transparent", width: 0})));
      bands.push({series: [first + 1, first], fill: () => ink(group.color, 0.14)});
    }
    for (const group of groups) {
      for (const seed of group.seeds) {
        add([seed.x, seed.y, seed.training], [
          {group, part: "seeds", width: 0.8, stroke: () => ink(group.color, 0.6), dash: group.dash},
          {group, part: "training", width: 0.8, stroke: () => ink(group.color, 0.6), dash: [2, 3]},
        ]);
      }
    }
    for (const group of medians) {
      const line = {group, part: "middle", width: 2.2, stroke: () => ink(group.color), dash: group.dash};
      add([group.middle.x, group.middle.y], [line]);
    }
    const visible = one => one.group.on && shown[one.part];
    for (const one of series.slice(1)) one.show = visible(one);

    const faint = {stroke: () => css("--line"), width: 1};
    const axis = {
      stroke: () => css("--ink"), grid: faint, ticks: faint, font: "12px system-ui", labelFont: "12px system-ui",
      labelSize: 18, values: (_, ticks) => ticks.map(number),
    };
    function marks(u) {
      const context = u.ctx, ratio = devicePixelRatio, {left, top, width, height} = u.bbox;
      const px = (x, y) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
      context.save();
      context.beginPath(); context.rect(left, top, width, height); context.clip();
      context.lineWidth = ratio;
      for (const guide of spec.guides) {
        const [, y] = px(0, guide.y);
        context.strokeStyle = css("--soft"); context.setLineDash(guide.dash.map(n => n * ratio));
        context.beginPath(); context.moveTo(left, y); context.lineTo(left + width, y); context.stroke();
      }
      context.setLineDash([]);
      if (spec.of) {  // aligned by the moment
        const [x] = px(0, 0);
        context.strokeStyle = css("--soft");
        context.beginPath(); context.moveTo(x, top); context.lineTo(x, top + height); context.stroke();
      }
      for (const group of groups.filter(one => one.on)) {
        context.fillStyle = ink(group.color); context.strokeStyle = css("--paper");
        for (const [x, y] of group.stars) star(context, ...px(x, y), (shown.seeds ? 6 : 3.5) * ratio);
        context.strokeStyle = ink(group.color); context.lineWidth = 1.5 * ratio;
        for (const [x, y] of group.ends || []) {
          const [a, b] = px(x, y);
          context.beginPath(); context.moveTo(a, b - 6 * ratio); context.lineTo(a, b + 6 * ratio); context.stroke();
        }
        context.lineWidth = ratio;
      }
      context.restore();
    }

    // Stars and bars at both ends of the axis are drawn whole.
    const roomy = (low, high) => { const room = 0.012 * (high - low || 1); return [low - room, high + room]; };

    // Room for the longest number beside the axis.
    const wide = (_, texts) => Math.max(50, 20 + 7 * Math.max(...(texts || [""]).map(text => String(text ?? "").length)));

    const bar = element("div", place, "", "bar");
    const canvas = element("div", place, "", "canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", spec.alt);
    canvas.tabIndex = 0;
    const legend = element("ul", place, "", "legend");
    const size = () => ({width: canvas.clientWidth, height: Math.max(280, Math.min(380, Math.round(canvas.clientWidth * 0.5)))});
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const u = new uPlot({
      ...size(), series, bands,
      legend: {show: false},
      // No line across at the pointer: it looks like a threshold.
      cursor: {y: false, drag: {x: true, y: true, uni: 20}, points: {show: false}},
      scales: {x: {time: false, range: (_, low, high) => zoomed ? [low, high] : roomy(low, high)}, y: spec.range ? {range: (_, low, high) => zoomed ? [low, high] : spec.range} : {}},
      axes: [{...axis, label: spec.x, size: 32}, {...axis, label: spec.y, size: wide}],
      hooks: {draw: [marks], setCursor: [told], setSelect: [() => { zoomed = true; }]},
    }, data, canvas);
    // Before uPlot's own listener, which scales anew.
    u.over.addEventListener("dblclick", () => { zoomed = false; }, true);
    const finger = event => {
      const box = u.over.getBoundingClientRect(), {clientX, clientY} = event.touches[0];
      u.setCursor({left: clientX - box.left, top: clientY - box.top});
    };
    u.over.addEventListener("touchstart", finger, {passive: true});
    u.over.addEventListener("touchmove", finger, {passive: true});

    // The arrow keys go from epoch to epoch, as the pointer does.
    canvas.addEventListener("keydown", event => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], xs = u.data[0], {min, max} = u.scales.x;
      const first = xs.findIndex(x => x >= min), last = xs.findLastIndex(x => x <= max);
      if (!step || first < 0 || last < first) return;
      event.preventDefault();
      const {left, idx} = u.cursor, from = left >= 0 && idx !== null ? idx + step : step > 0 ? first : last;
      u.setCursor({left: u.valToPos(xs[Math.max(first, Math.min(last, from))], "x"), top: 0});
    });

    function refresh() {
      const {min, max} = u.scales.y;
      u.batch(() => {
        series.slice(1).forEach((one, i) => {
          if (u.series[i + 1].show !== visible(one)) u.setSeries(i + 1, {show: visible(one)});
        });
        if (zoomed) u.setScale("y", {min, max});
      });
      entries.forEach(([button, group]) => button.setAttribute("aria-pressed", group.on));
      count();
    }
    // A chart holds all settings, also those that are off at first.
    function count() {
      const on = groups.filter(group => group.on).length;
      many.textContent = on < groups.length ? `${on} of ${groups.length} shown` : "";
    }
    function button(parent, text, press, pressed) {
      const made = element("button", parent, text);
      made.type = "button";
      if (pressed !== undefined) made.setAttribute("aria-pressed", pressed);
      made.addEventListener("click", () => press(made));
      return made;
    }
    function part(name, text) {
      const press = made => {
        shown[name] = !shown[name];
        made.setAttribute("aria-pressed", shown[name]);
        refresh();
      };
      button(bar, text, press, shown[name]);
    }
    const some = name => groups.some(group => group.seeds.some(seed => seed[name].some(value => value !== null)));
    if (groups.some(group => group.seeds.length)) part("seeds", "seeds");
    if (some("training")) part("training", "training (dotted)");
    if (groups.some(group => group.middle)) {
      if (!spec.steps) part("middle", "median");
      part("band", spec.steps || "middle half of the seeds");
    }
    if (groups.length > 1) {
      button(bar, "all", () => { groups.forEach(group => { group.on = true; }); refresh(); });
      button(bar, "none", () => { groups.forEach(group => { group.on = false; }); refresh(); });
    }
    const many = element("span", bar, "", "many");
    count();
    button(bar, "whole range", () => { zoomed = false; u.setData(data); });
    const hint = matchMedia("(pointer: coarse)").matches ? "touch for values" : "drag to zoom";
    const where = element("output", bar, hint);

    entries = groups.map(group => {
      const item = element("li", legend);
      const made = button(item, "", () => { group.on = !group.on; refresh(); }, group.on);
      const stroke = swatch(made, group.dash);
      const paint = () => { stroke.setAttribute("stroke", ink(group.color)); };
      paint();
      element("span", made, group.name);
      return [made, group, element("span", item, "", "value"), paint];
    });
    for (const guide of spec.guides) {
      const item = element("li", legend, "", "guide");
      swatch(item, guide.dash).setAttribute("stroke", "currentColor");
      element("span", item, `${guide.name} (${number(guide.y)})`);
    }
    function told() {
      const {left, idx} = u.cursor;
      const x = !(left >= 0) || idx === null ? null : spec.steps ? Math.max(0, Math.floor(u.posToVal(left, "x") + 1e-6)) : u.data[0][idx];
      where.textContent = x === null ? hint : `${spec.x} ${number(x)}`;
      for (const [, group, output] of entries) {
        output.textContent = x !== null && group.on ? value(group, x) : "";
      }
    }
    // Values are those of the nearest validation, which is named where it is not at x.
    function value(group, x) {
      const when = found => spec.steps || found === x ? "" : ` at ${number(found)}`;
      const own = group.middle, i = own ? at(own, x, spec.steps) : null;
      if (i !== null && own.y[i] !== null) {
        const interval = own.low[i] === null ? "" : ` (${number(own.low[i])} to ${number(own.high[i])})`;
        return `${number(own.y[i])}${interval}${when(own.x[i])}`;
      }
      const points = group.seeds.map(seed => [seed, at(seed, x)]).filter(([seed, j]) => j !== null && seed.y[j] !== null)
        .map(([seed, j]) => [seed.x[j], seed.y[j]]);
      if (!points.length) return "";
      const nearest = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)[0];
      const values = points.filter(([found]) => found === nearest).map(([, y]) => y);
      if (values.length === 1) return number(values[0]) + when(nearest);
      return `${number(Math.min(...values))} to ${number(Math.max(...values))} (${values.length} seeds)${when(nearest)}`;
    }
    new ResizeObserver(() => u.setSize(size())).observe(canvas);
    return () => { entries.forEach(([, , , paint]) => paint()); u.redraw(false); };
  }

  const redraw = [];
  const place = new IntersectionObserver(entries => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      place.unobserve(target);
      const figure = target.closest("figure");
      try {
        target.hidden = false;
        redraw.push(build(target, specOf(target.id)));
        figure.classList.add("live");
        const parts = document.querySelectorAll(`[data-part-of="${CSS.escape(target.id)}"]`);
        parts.forEach(one => one.classList.add("live", "part"));
      } catch (error) {
        target.hidden = true;
        console.error(error);
      }
    }
  }, {rootMargin: "600px"});
  for (const target of document.querySelectorAll(".chart")) { target.hidden = false; place.observe(target); }

  // The switch between light and dark paper; the browser's own wish until it is pressed.
  const toggle = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("eureka-theme"); } catch { return null; } };
  function paint(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    toggle.textContent = dark() ? "Light page" : "Dark page";
    redraw.forEach(draw => draw());
  }
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    try { localStorage.setItem("eureka-theme", theme); } catch { /* a browser that keeps nothing */ }
    paint(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(root.dataset.theme));
  paint(stored());
})();
