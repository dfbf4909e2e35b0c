// Shows Refit's notices in JupyterLab: as long as a page is looked at, a notice is on it until somebody closes it.
// It is loaded as it is, as a module federation container that shares nothing; so nothing has to be built.
"use strict";

(() => {
  const SCHEMA = "https://refit/notices";
  const MOVED = "moved"; // the notice that a session has after it was moved
  const AWAY = "away"; // what is shown while it is
  const LOOK_AGAIN = 30_000; // milliseconds
  const TELL_AGAIN = 20_000;
  const SIGNS = ["keydown", "pointerdown", "wheel"];
  const AREAS = ["main", "left", "right", "down"];
  const STYLE = {
    panel: `position: fixed; right: 16px; bottom: 36px; z-index: 10000; max-width: 34em; max-height: 70vh; overflow: auto;
      padding: 12px 16px; border: 1px solid var(--jp-border-color1); border-left: 4px solid var(--jp-warn-color1);
      background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); font-size: var(--jp-ui-font-size1);
      box-shadow: var(--jp-elevation-z6); white-space: pre-line`,
    button: "margin: 12px 8px 0 0",
  };

  // Two moves may say the same.
  function sameAs({ id, at, text }) {
    return JSON.stringify([id, at, text]);
  }

  function element(name, text, style = "") {
    const made = document.createElement(name);
    made.textContent = text;
    made.style.cssText = style;
    return made;
  }

  function button(label, action) {
    const made = element("button", label, STYLE.button);
    made.className = "jp-Button jp-mod-styled jp-mod-accept";
    made.onclick = action;
    return made;
  }

  // Refit has given each document whose kernel ended a fresh one at the same path, and JupyterLab looks for that only when a
  // document is opened. So documents without a kernel are told to look again; where that can't be, a person picks a kernel.
  async function findKernels(app) {
    await app.serviceManager.sessions.refreshRunning();
    const running = [...app.serviceManager.sessions.running()];
    for (const widget of app.shell.widgets("main")) {
      const context = widget.sessionContext;
      const lost = context && !running.some((session) => session.id === context.session?.id);
      if (lost && running.some((session) => session.path === context.path)) await context._initialize?.();
    }
  }

  // JupyterLab tries seven times to reach a terminal, within a minute or two, and then never again: its tab would take what
  // is typed, and nothing would happen. It tells a terminal the size of its tab once, and one that is there again has another.
  async function findTerminals(app, isLost) {
    const tabs = AREAS.flatMap((area) => [...app.shell.widgets(area)].map((widget) => widget.content ?? widget));
    const terminals = tabs.filter(({ session }) => session?.reconnect && session.connectionStatus);
    if (!terminals.some(isLost)) return;
    await app.serviceManager.terminals.refreshRunning(); // the tabs of those that are no more are closed
    const again = terminals.map(async (tab) => {
      if (tab.isDisposed || tab.session.isDisposed) return;
      if (tab.session.connectionStatus !== "connected") await tab.session.reconnect();
      tab._setSessionSize?.();
    });
    await Promise.allSettled(again);
  }

  const any = () => true;
  const isGivenUp = ({ session }) => session.connectionStatus === "disconnected";

  class Notices {
    constructor(app) {
      this.app = app;
      this.url = `${app.serviceManager.serverSettings.baseUrl}refit/notices`;
    }

    async ask(said) {
      const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
      const headers = { "X-XSRFToken": xsrf ? xsrf[1] : "" };
      const answer = await fetch(this.url, said ? { method: "POST", headers, body: JSON.stringify(said) } : {});
      return answer.ok ? answer.json() : [];
    }

    // Nobody sees what is shown on a page in the background.
    async look() {
      if (this.waits || document.visibilityState !== "visible") return;
      findTerminals(this.app, isGivenUp).catch(console.warn);
      const latest = (await this.ask()).at(-1);
      if (!latest || latest.closed) this.show();
      else if (sameAs(latest) !== this.shown) {
        this.show(latest);
        await this.ask({ id: latest.id, shown: true });
      }
      await this.mend(latest);
    }

    // Once after each move, also where its notice was closed on another page. A page that was opened since has all it needs.
    async mend(latest) {
      const move = latest?.id === MOVED ? sameAs(latest) : "";
      const isNew = move !== this.mended && !(latest?.closed && this.mended === undefined);
      this.mended = move;
      if (move && isNew) await Promise.all([findTerminals(this.app, any), findKernels(this.app)]);
    }

    // The session is away, and the gateway's waiting page says why, until the session answers.
    async wait() {
      if (this.waits) return;
      this.waits = true;
      for (let story, told; (story = await this.hear()); told = story.text ?? told) {
        const { headline: title, text } = story;
        if (text && text !== told) this.show({ id: AWAY, title, text, answers: [] });
        await new Promise((again) => setTimeout(again, 1000 * story.again));
      }
      this.waits = false;
      this.show();
      findTerminals(this.app, any).catch(console.warn);
      await this.look();
    }

    async hear() {
      try {
        const answer = await fetch(this.url, { headers: { Accept: "application/json" } });
        const story = answer.status === 503 && (await answer.json());
        return story?.refit === "waiting-page" && story;
      } catch {
        return { again: 1 };
      }
    }

    // In the place of the one before; nothing: only that goes.
    show(notice) {
      this.panel?.remove();
      this.shown = notice && sameAs(notice);
      if (!notice) return;
      const panel = (this.panel = element("div", "", STYLE.panel));
      panel.className = "refit-notice";
      panel.setAttribute("role", "alertdialog");
      panel.setAttribute("aria-label", notice.title);
      panel.append(element("strong", notice.title), element("div", notice.text));
      for (const [answer, label] of notice.answers) panel.append(button(label, () => this.close(notice, { answer })));
      panel.append(button("Close", () => this.close(notice)));
      document.body.append(panel);
    }

    close(notice, said = {}) {
      this.show();
      return this.ask({ id: notice.id, closed: true, ...said });
    }
  }

  // JupyterLab itself would only say, in a dialog, that it can't reach its server.
  function listen(app, notices) {
    const failure = app.serviceManager.connectionFailure;
    const tell = failure.emit.bind(failure);
    failure.emit = (error) => void (error?.response?.status === 503 ? notices.wait().catch(console.warn) : tell(error));
  }

  // Whoever types, clicks or scrolls works here, long before anything is saved. A page that is only open tells nothing.
  function beat(notices) {
    let told = -Infinity;
    const tell = (event) => {
      if (!event.isTrusted || event.timeStamp - told < TELL_AGAIN) return;
      told = event.timeStamp;
      notices.ask({ used: true }).catch(console.warn);
    };
    for (const sign of SIGNS) document.addEventListener(sign, tell, { capture: true, passive: true });
  }

  const plugin = {
    id: "refit-notices:plugin",
    autoStart: true,
    activate: (app) => {
      const notices = new Notices(app);
      listen(app, notices);
      beat(notices);
      const look = () => notices.look().catch(console.warn); // a server that is away is looked at again when it is back
      app.serviceManager.events.stream.connect((_, event) => event.schema_id === SCHEMA && look());
      document.addEventListener("visibilitychange", look);
      setInterval(look, LOOK_AGAIN); // an event that came while the page had no connection is lost
      app.restored.then(look);
    },
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["refit-notices"] = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
