// Browsers start no workers on pages that are opened from disk. The site's search runs in one, so
// there a hidden frame takes its place: the same script, the same messages.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.inside = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      frame.srcdoc = "<!doctype html><html><body></body></html>";
      frame.addEventListener("load", () => this.begin(frame.contentWindow, url), { once: true });
      document.body.append(frame);
    }

    begin(inside, url) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.addEventListener("load", () => {
        this.inside = inside;
        for (const data of this.waiting.splice(0)) this.postMessage(data);
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.inside === null) this.waiting.push(data);
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
