// Connects the page with a shell of the server's. The shell goes on when the page is closed, and is found again.
const NAME = new URLSearchParams(location.search).get("name") || "main";
const { baseUrl: base, xsrf } = document.documentElement.dataset;
// The browser has a cookie now: the token need not stay where others see it.
history.replaceState(null, "", NAME === "main" ? location.pathname : `?name=${NAME}`);
const terminal = new Terminal({ cursorBlink: true });
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(document.getElementById("terminal"));
terminal.focus();

async function ensureShell() {
  const shells = await (await fetch(`${base}api/terminals`)).json();
  if (shells.some((shell) => shell.name === NAME)) return;
  const headers = { "Content-Type": "application/json", "X-XSRFToken": xsrf };
  await fetch(`${base}api/terminals`, { method: "POST", headers, body: JSON.stringify({ name: NAME }) });
}

async function connect() {
  await ensureShell();
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}${base}terminals/websocket/${NAME}`);
  const send = (...message) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  const resize = () => {
    fit.fit();
    send("set_size", terminal.rows, terminal.cols, innerHeight, innerWidth);
  };
  const typing = terminal.onData((data) => send("stdin", data));
  const resizing = new ResizeObserver(resize);
  socket.onopen = () => resizing.observe(document.body);
  socket.onmessage = ({ data }) => {
    const [kind, text] = JSON.parse(data);
    if (kind === "stdout") terminal.write(text);
  };
  // The session may just be on its way to another container: then its next one answers.
  socket.onclose = () => {
    typing.dispose();
    resizing.disconnect();
    retry();
  };
}

function retry() {
  setTimeout(() => connect().catch(retry), 1000);
}

connect().catch(retry);
