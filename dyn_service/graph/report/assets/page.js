"use strict";
// Draws the charts of a report. The data stand in the page: arrays of numbers as base64 of little-endian 32-bit floats.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const made = new Map(); // place -> chart
  const timed = () => [...made.entries()].filter(([place]) => data[place.dataset.chart].timed).map(([, chart]) => chart);
  let span = null; // what all charts over time show; null is all of it
  let passing = false;

  const colour = (role) => getComputedStyle(root).getPropertyValue(`--${role}`).trim();
  const numbers = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return Array.from(new Float32Array(bytes.buffer), (value) => (Number.isNaN(value) ? null : value));
  };
  const read = new Map();
  const columns = (index) => {
    if (!read.has(index)) {
      const chart = data[index];
      const positive = chart.log.includes("y");
      const lines = chart.lines.map((line) => numbers(line.y).map((y) => (positive && y !== null && y <= 0 ? null : y)));
      read.set(index, [typeof chart.x === "number" ? columns(Number(index) + chart.x)[0] : numbers(chart.x), ...lines]);
    }
    return read.get(index);
  };
  const whole = () => [Number(root.dataset.begin), Number(root.dataset.end)];

  // 1234.5 -> "1,235", 0.000123 -> "1.23e-4"
  const shown = (value) => {
    if (value === null || value === undefined) return "\u2013";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
    return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
  };

  const round = (value) => Number(value.toFixed(6));

  // A tick as it is written at an axis. Twelve digits hide that 0.1 + 0.2 is not 0.3.
  const tick = (value) => {
    const rounded = Number(value.toPrecision(12));
    const size = Math.abs(rounded);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? rounded.toExponential() : String(rounded);
  };

  // Multiples of 1, 2 or 5 times a power of ten: the widest step that has one every 45 px (110 px along x), two at least.
  const linearSplits = (plot, axis, low, high) => {
    const pixels = (axis === 0 ? plot.bbox.width / 110 : plot.bbox.height / 45) / devicePixelRatio;
    const first = (step) => Math.ceil(low / step - 1e-9);
    const count = (step) => Math.floor(high / step + 1e-9) - first(step) + 1;
    let step = 10 ** Math.ceil(Math.log10(high - low));
    for (let k = 0; count(step) < Math.max(2, Math.floor(pixels)); k++) step *= [0.5, 0.4, 0.5][k % 3];
    return Array.from({ length: count(step) }, (_, k) => (first(step) + k) * step);
  };

  // As wide as the widest tick, so that no sign or digit is cut.
  const axisSize = (plot, values, axis, cycle) => {
    const { ticks, gap, _size, font } = plot.axes[axis];
    if (cycle > 1 || !values) return _size || 46;
    plot.ctx.font = font[0];
    const widest = Math.max(0, ...values.map((text) => (text ? plot.ctx.measureText(text).width / devicePixelRatio : 0)));
    return Math.max(46, Math.ceil(widest + ticks.size + gap + 2));
  };

  // 1, 2, 5, 10, .. or, over many decades, 1, 10, 100
  const logSplits = (plot, axis, low, high) => {
    const steps = high / low > 300 ? [1] : [1, 2, 5];
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
      for (const step of steps) {
        const value = step * 10 ** decade;
        if (value >= low && value <= high) found.push(value);
      }
    }
    return found;
  };

  function yRange(chart) {
    const marks = chart.marks.filter((mark) => mark.along === "y").map((mark) => mark.at);
    return (plot, low, high) => {
      if (low === null || low === undefined) [low, high] = [0, 1];
      low = Math.min(low, ...marks);
      high = Math.max(high, ...marks);
      if (chart.log.includes("y")) {
        if (chart.kind === "bars") return [0.7, Math.max(high, 1) * 4];
        return [Math.max(low, 1e-9) / 1.15, Math.max(high, 1e-9) * 1.3];
      }
      // Values that differ by rounding alone are a flat line with short labels.
      const size = Math.max(Math.abs(low), Math.abs(high));
      const short = high === low && high ? 0 : Math.max(chart.least, 1e-6 * size, high - low) - (high - low);
      high += chart.from_zero ? short : short / 2;
      low -= short / 2;
      const pad = (high - low || Math.abs(high) || 1) * 0.07;
      return chart.from_zero ? [0, high + pad] : [low - pad, high + pad];
    };
  }

  function xRange(chart, x) {
    if (chart.timed) return () => span || whole();
    const marks = chart.marks.filter((mark) => mark.along === "x").map((mark) => mark.at);
    const low = Math.min(x[0], ...marks);
    const high = Math.max(x[x.length - 1], ...marks);
    return () => (chart.log.includes("x") ? [low / 1.1, high * 1.1] : [low, high]);
  }

  function bands(chart, plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [role, spans] of [["band", chart.bands], ["alarm", chart.alarms]]) {
      ctx.fillStyle = colour(role);
      for (const [from, to] of spans) {
        const left = plot.valToPos(from, "x", true);
        const right = plot.valToPos(to, "x", true);
        ctx.fillRect(left, bbox.top, Math.max(right - left, devicePixelRatio), bbox.height);
      }
    }
    ctx.restore();
  }

  function marks(chart, plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = 1.2 * ratio;
    ctx.setLineDash([6 * ratio, 3 * ratio]);
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    let row = 0;
    for (const mark of chart.marks) {
      ctx.strokeStyle = ctx.fillStyle = colour(mark.role);
      const along = mark.along;
      const at = plot.valToPos(mark.at, along, true);
      const inside = along === "x" ? at >= bbox.left && at <= bbox.left + bbox.width : at >= bbox.top - 1 && at <= bbox.top + bbox.height + 1;
      if (!inside) continue;
      ctx.beginPath();
      if (along === "x") {
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
      } else {
        ctx.moveTo(bbox.left, at);
        ctx.lineTo(bbox.left + bbox.width, at);
      }
      ctx.stroke();
      if (!mark.label) continue;
      const width = ctx.measureText(mark.label).width;
      if (along === "x") {
        const y = bbox.top + (12 + 14 * row++) * ratio;
        const left = at + width + 8 * ratio > bbox.left + bbox.width ? at - width - 5 * ratio : at + 5 * ratio;
        ctx.fillText(mark.label, left, y);
      } else {
        const below = at < bbox.top + 14 * ratio;
        ctx.fillText(mark.label, bbox.left + 4 * ratio, at + (below ? 12 : -4) * ratio);
      }
    }
    ctx.restore();
  }

  function lookAt(from, to) {
    span = from === null ? null : [from, to];
    document.getElementById("all-of-it").hidden = span === null;
    passing = true;
    const [min, max] = span || whole();
    for (const chart of timed()) chart.setScale("x", { min, max });
    passing = false;
  }

  function series(chart, line) {
    const stroke = colour(line.role);
    const base = { label: line.label, stroke, value: (plot, value) => shown(value) };
    if (chart.kind === "points") return { ...base, paths: () => null, points: { show: true, size: 2.5, fill: stroke, stroke } };
    if (chart.kind === "bars") {
      return { ...base, fill: stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.94, Infinity, 1] }) };
    }
    return { ...base, width: line.role === "reference" ? 4 : 1.2, points: { show: false } };
  }

  function draw(place) {
    const index = place.dataset.chart;
    const chart = data[index];
    const values = columns(index);
    const soft = colour("soft");
    const grid = { stroke: colour("grid"), width: 1 };
    const ticks = { stroke: colour("rule"), width: 1, size: 4 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: soft, grid, ticks, font, labelFont: font, values: (plot, splits) => splits.map((value) => (value === null ? "" : tick(value))) };
    const log = (along) => (chart.log.includes(along) ? { distr: 3, log: 10 } : {});
    const ticked = (along) => (chart.log.includes(along) ? { splits: logSplits, filter: (plot, splits) => splits } : { splits: linearSplits });
    const plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 100),
        height: chart.height,
        scales: {
          x: { time: false, range: xRange(chart, values[0]), ...log("x") },
          y: { range: yRange(chart), ...log("y") },
        },
        axes: [
          { ...axis, ...ticked("x"), size: 32, labelSize: 14, labelGap: -4, label: chart.last ? chart.x_label : undefined },
          { ...axis, ...ticked("y"), size: axisSize, space: 22, labelSize: 14, label: chart.label },
        ],
        series: [{ label: chart.x_label, value: (plot, value) => shown(value) }, ...chart.lines.map((line) => series(chart, line))],
        cursor: { drag: { x: true, y: false }, sync: chart.timed ? { key: "time" } : undefined, points: { size: 5 } },
        legend: { live: true },
        hooks: {
          drawAxes: [(self) => bands(chart, self)],
          draw: [(self) => marks(chart, self)],
          setScale: [(self, key) => key === "x" && place.setAttribute("data-shown", `${round(self.scales.x.min)} ${round(self.scales.x.max)}`)],
          setSelect: [
            (self) => {
              if (!chart.timed || self.select.width < 3) return;
              const from = self.posToVal(self.select.left, "x");
              const to = self.posToVal(self.select.left + self.select.width, "x");
              self.setSelect({ width: 0, height: 0 }, false);
              if (!passing) lookAt(from, to);
            },
          ],
        },
      },
      values,
      place,
    );
    if (chart.timed) {
      plot.cursor.drag.setScale = false; // the span is that of all charts
      plot.over.addEventListener("dblclick", () => lookAt(null));
    }
    made.set(place, plot);
  }

  function drawAgain() {
    for (const [place, chart] of made) {
      chart.destroy();
      draw(place);
    }
  }

  const places = [...document.querySelectorAll(".chart[data-chart]")];
  const wanted = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting && !made.has(target)) draw(target);
      }
    },
    { rootMargin: "600px" },
  );
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = made.get(target);
      if (chart && target.clientWidth > 0 && chart.width !== target.clientWidth) {
        chart.setSize({ width: target.clientWidth, height: data[target.dataset.chart].height });
      }
    }
  });
  // Charts further down are drawn while the browser is idle, so that a screenshot or a print of the page has them all.
  const later = window.requestIdleCallback || ((work) => setTimeout(work, 30));
  const drawRest = () => {
    const next = places.find((place) => !made.has(place) && place.clientWidth > 0);
    if (next) {
      draw(next);
      later(drawRest);
    }
  };
  addEventListener("load", () => later(drawRest));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wear = (theme) => {
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    drawAgain();
  };
  const preferred = () => (dark.matches ? "dark" : "light");
  wear(preferred());
  dark.addEventListener("change", () => wear(preferred()));
  for (const place of places) {
    wanted.observe(place);
    sized.observe(place);
  }
  document.getElementById("theme").addEventListener("click", () => wear(root.dataset.theme === "dark" ? "light" : "dark"));
  document.getElementById("all-of-it").addEventListener("click", () => lookAt(null));
  for (const button of document.querySelectorAll("button[data-from]")) {
    button.addEventListener("click", () => {
      const [begin, end] = whole();
      const [from, to] = [Number(button.dataset.from), Number(button.dataset.to)];
      const pad = Math.max(0.3 * (to - from), 0.1);
      lookAt(Math.max(begin, from - pad), Math.min(end, to + pad));
      const target = document.getElementById(button.dataset.part);
      if (target) {
        target.open = true;
        target.scrollIntoView({ behavior: "smooth" });
      }
    });
  }
  addEventListener("beforeprint", () => {
    wear("light");
    for (const part of document.querySelectorAll("details.part")) part.open = true;
    for (const place of places) if (!made.has(place)) draw(place);
  });
  addEventListener("afterprint", () => wear(preferred()));
})();
