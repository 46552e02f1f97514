"use strict";
(function () {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const config = {
    responsive: true, displaylogo: false, scrollZoom: false, displayModeBar: "hover",
    // Plotly's button that sends a figure to its makers' server has no place here.
    showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d", "resetCameraLastSave3d"],
  };
  const touch = matchMedia("(pointer: coarse)").matches;

  // -- theme ------------------------------------------------------------------------------------
  function template(dark) {
    const ink = dark ? "#d5dae0" : "#2b323a";
    const grid = dark ? "#2d343d" : "#e6e9ec";
    const line = dark ? "#525c68" : "#b4bcc5";
    const axis = {
      gridcolor: grid, linecolor: line, zerolinecolor: grid, tickcolor: line,
      ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 8, font: { size: 13 } },
    };
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        colorway: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"],
        xaxis: axis, yaxis: axis,
        hoverlabel: {
          bgcolor: dark ? "#222831" : "#ffffff", bordercolor: line, font: { color: ink, size: 12 },
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: ink },
      },
    };
  }
  const drawn = new Map();
  const button = document.getElementById("theme");
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  function remembered() {
    try { return localStorage.getItem("eigenlens-theme"); } catch (error) { return null; }
  }
  function remember(value) {
    try { localStorage.setItem("eigenlens-theme", value); } catch (error) { /* a private window */ }
  }
  function paint() {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(dark));
    button.setAttribute("aria-label", dark ? "Use the light theme" : "Use the dark theme");
    for (const place of drawn.keys()) clothe(place, dark);
  }
  // Signed maps have the page's own colour at zero.
  function clothe(place, dark, size) {
    Plotly.relayout(place, Object.assign({ template: template(dark) }, size));
    const maps = place.data.map(function (t, i) { return t.type === "heatmap" ? i : -1; })
      .filter(function (i) { return i >= 0; });
    const scale = [[0, "#D55E00"], [0.5, dark ? "#262c34" : "#eef0f2"], [1, dark ? "#2b8fd0" : "#0072B2"]];
    if (maps.length) Plotly.restyle(place, { colorscale: [scale] }, maps);
  }
  if (remembered()) dark = remembered() === "dark";
  button.addEventListener("click", function () {
    dark = !dark;
    remember(dark ? "dark" : "light");
    paint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function (event) {
    if (!remembered()) { dark = event.matches; paint(); }
  });

  // -- without WebGL the sphere is seen from above ------------------------------------------------
  function hasWebGL() {
    try {
      const canvas = document.createElement("canvas");
      return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
    } catch (error) { return false; }
  }
  function flat(plot) {
    const two = function (trace) {
      const copy = Object.assign({}, trace);
      delete copy.z;
      if (copy.type === "scatter3d") copy.type = "scatter";
      return copy;
    };
    const axis = { range: [-1.15, 1.15], zeroline: false, showgrid: false };
    const layout = Object.assign({}, plot.layout, {
      xaxis: Object.assign({ title: { text: "e\u2081" }, constrain: "domain" }, axis),
      yaxis: Object.assign({ title: { text: "e\u2082" }, scaleanchor: "x", constrain: "domain" }, axis),
      margin: { l: 48, r: 12, t: 12, b: 44 },
    });
    delete layout.scene;
    return {
      data: plot.data.filter(function (t, i) { return i > 0; }).map(two),
      layout: layout,
      frames: (plot.frames || []).map(function (frame) {
        return { name: frame.name, data: frame.data.map(two), traces: frame.traces.map(function (t) { return t - 1; }) };
      }),
      shift: 1,
    };
  }

  // -- controls -----------------------------------------------------------------------------------
  function element(tag, attributes, text) {
    const made = document.createElement(tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  // Names were escaped for plotly, which reads entities; here they are plain text.
  function plain(text) {
    return text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  }
  const instant = { mode: "immediate", frame: { duration: 0, redraw: true }, transition: { duration: 0 } };

  function slider(place, bar, control, frames) {
    const last = frames.length - 1;
    const box = element("div", { class: "moves" });
    const play = element("button", { type: "button" }, "Play");
    const label = element("span", {}, control.label);
    const range = element("input", { type: "range", min: 0, max: last, step: 1, "aria-label": control.label });
    const shown = element("output", {});
    range.value = control.start;
    function show() {
      const name = plain(control.names[range.value]);
      shown.textContent = name;
      range.setAttribute("aria-valuetext", control.label + " " + name);
      return Plotly.animate(place, [frames[range.value].name], instant);
    }
    let timer = null;
    function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
    play.addEventListener("click", function () {
      if (timer !== null) { stop(); return; }
      if (Number(range.value) === last) { range.value = 0; show(); }
      play.textContent = "Pause";
      timer = setInterval(function () {
        if (Number(range.value) >= last) { stop(); return; }
        range.value = Number(range.value) + 1;
        show();
      }, 650);
    });
    range.addEventListener("input", function () { stop(); show(); });
    shown.textContent = plain(control.names[control.start]);
    range.setAttribute("aria-valuetext", control.label + " " + shown.textContent);
    box.append(play, label, range, shown);
    bar.append(box);
  }

  function choice(place, bar, control, frames) {
    const label = element("label", {}, control.label);
    const select = element("select", {});
    control.names.forEach(function (name, i) { select.append(element("option", { value: i }, plain(name))); });
    select.value = control.start;
    select.addEventListener("change", function () {
      Plotly.animate(place, [frames[select.value].name], instant);
    });
    label.append(select);
    bar.append(label);
  }

  // A group of traces (a prompt) alone: its points get a colour each, and their texts.
  function groups(place, bar, found, shift) {
    const label = element("label", {}, found.label);
    const select = element("select", {});
    select.append(element("option", { value: -1 }, "all, one colour each"));
    found.names.forEach(function (name, i) {
      select.append(element("option", { value: i }, i + 1 + ": " + plain(name)));
    });
    const first = found.first - shift;
    const scale = [[0, "#0072B2"], [0.5, "#CC79A7"], [1, "#E69F00"]];
    select.addEventListener("change", function () {
      const one = Number(select.value);
      found.names.forEach(function (name, i) {
        const alone = one === i;
        const count = place.data[first + i].x.length;
        const colours = Array.from({ length: count }, function (_, k) { return k; });
        Plotly.restyle(place, {
          visible: one < 0 || alone,
          mode: alone ? "markers+text" : "markers",
          "marker.color": alone ? [colours] : found.colours[i],
          "marker.colorscale": [scale],
          "marker.cmin": 0,
          "marker.cmax": Math.max(1, count - 1),
        }, [first + i]);
      });
    });
    label.append(select);
    bar.append(label);
  }

  // On a phone: small legends with room between the panels, the whole sphere, no numbers in cells.
  function squeeze(plot, layout) {
    const small = { font: { size: 10 } };
    ["legend", "legend2", "legend3"].forEach(function (name) {
      if (layout[name]) layout[name] = Object.assign({}, layout[name], small);
    });
    if (layout.legend3) layout.height *= 1.3;
    if (layout.yaxis && layout.yaxis.scaleanchor) layout.height = Math.max(320, 0.85 * layout.height);
    if (layout.scene) {
      const eye = layout.scene.camera.eye;
      const far = { x: 1.5 * eye.x, y: 1.5 * eye.y, z: 1.5 * eye.z };
      layout.scene = Object.assign({}, layout.scene, { camera: { eye: far } });
      layout.height = 360;
    }
    plot.data.concat(...(plot.frames || []).map(function (f) { return f.data; })).forEach(function (trace) {
      if (trace.texttemplate) delete trace.texttemplate;
      if (trace.marker && trace.marker.colorbar) trace.marker.colorbar.thickness = 7;
    });
  }

  // -- figures --------------------------------------------------------------------------------------
  function draw(place) {
    if (drawn.has(place)) return Promise.resolve();
    let plot = plots[place.dataset.plot];
    if (plot.layout.scene && !hasWebGL()) plot = Object.assign({ flat: true }, flat(plot));
    const layout = Object.assign({}, plot.layout, { template: template(dark) });
    const meta = layout.meta || {};
    delete layout.sliders;
    if (touch) layout.dragmode = false;
    const narrow = place.clientWidth < 420;
    place.classList.toggle("narrow", narrow);
    if (narrow) squeeze(plot, layout);
    const own = narrow ? Object.assign({}, config, { displayModeBar: false }) : config;
    return Plotly.newPlot(place, plot.data, layout, own).then(function () {
      drawn.set(place, plot);
      clothe(place, dark);
      const frames = plot.frames || [];
      const bar = place.parentElement.querySelector(".controls");
      if (!frames.length || !bar) return undefined;
      return Plotly.addFrames(place, frames).then(function () {
        if (meta.groups) groups(place, bar, meta.groups, plot.shift || 0);
        (meta.control.kind === "slider" ? slider : choice)(place, bar, meta.control, frames);
      });
    });
  }
  const places = Array.from(document.querySelectorAll(".chart"));
  root.dataset.theme = dark ? "dark" : "light";
  paint();
  // One after the other, so that the page answers while it fills.
  places.reduce(function (before, place) {
    return before.then(function () {
      return new Promise(function (done) { setTimeout(done, 0); });
    }).then(function () { return draw(place); });
  }, Promise.resolve()).then(function () { root.dataset.ready = "true"; });

  // -- paper ----------------------------------------------------------------------------------------
  const PAPER = 660;
  addEventListener("beforeprint", function () {
    for (const place of drawn.keys()) clothe(place, false, { width: PAPER });
  });
  addEventListener("afterprint", function () {
    for (const place of drawn.keys()) clothe(place, dark, { width: null, autosize: true });
  });

  // -- data -----------------------------------------------------------------------------------------
  document.getElementById("download").addEventListener("click", function () {
    const text = document.getElementById("data").textContent;
    const blob = new Blob([JSON.stringify(JSON.parse(text), null, 1)], { type: "application/json" });
    const link = element("a", { href: URL.createObjectURL(blob), download: this.dataset.file });
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  });
})();
