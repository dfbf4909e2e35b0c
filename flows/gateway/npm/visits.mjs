// The people in each session now: connections that the authorizer has let in, and its answers that are remembered. A
// right that it takes back ends here at once, for an open websocket asks nobody anything any more.
import { timingSafeEqual } from "node:crypto";

const LONGEST_BODY = 1 << 20;
// A browser that is told goodbye may take so long to hear it: milliseconds.
const FAREWELL = 500;

export class Visits {
  #open = new Map();
  #remembered = new Map();
  #most;
  #milliseconds;
  #looked = -Infinity;

  /**
   * An answer holds for so many milliseconds; for longer, if the authorizer permits it, but only while it goes on looking
   * through the visits with what the Hub tells it: each of its looks counts for so many milliseconds, too.
   */
  constructor(most, milliseconds) {
    this.#most = most;
    this.#milliseconds = milliseconds;
  }

  /** The authorizer's answer about such a request, while that holds. */
  recall(key) {
    const known = this.#remembered.get(key);
    if (known && this.#holds(known, performance.now())) return known;
    this.#remembered.delete(key);
  }

  remember(key, admission) {
    if (this.#remembered.size >= this.#most) this.#remembered.delete(this.#remembered.keys().next().value);
    const now = performance.now();
    const times = { until: now + this.#milliseconds, longest: now + 1000 * (admission.keep ?? 0) };
    const known = { ...admission, visitor: JSON.stringify(admission.visit), ...times };
    this.#remembered.set(key, known);
    return known;
  }

  #holds({ until, longest }, now) {
    return until >= now || (longest >= now && this.#looked + this.#milliseconds >= now);
  }

  /** The authorizer has looked through the visits that it was told last, and ended those that have to end. */
  looked() {
    const now = performance.now();
    // It wasn't told of answers that held no more; they must not hold again.
    for (const [key, known] of this.#remembered) if (!this.#holds(known, now)) this.#remembered.delete(key);
    this.#looked = now;
  }

  /** Answers about a session hold no more: it is elsewhere, is another one now, or is gone. */
  forget(path) {
    for (const key of this.#remembered.keys())
      if (key.startsWith(`${path}\n`) || key.startsWith(`${path}/`)) this.#remembered.delete(key);
  }

  /** A connection of a person to a session is open until it closes by itself, or `leave` is called. */
  enter({ visitor }, connection, leave) {
    let connections = this.#open.get(visitor);
    if (!connections) this.#open.set(visitor, (connections = new Map()));
    connections.set(connection, leave);
    connection.once("close", () => {
      connections.delete(connection);
      if (!connections.size && this.#open.get(visitor) === connections) this.#open.delete(visitor);
    });
  }

  /** [visit, number of its connections] of all that are in, or would be let in without a question. */
  all() {
    const counted = new Map([...this.#open].map(([key, connections]) => [key, connections.size]));
    const now = performance.now();
    for (const known of this.#remembered.values())
      if (this.#holds(known, now) && !counted.has(known.visitor)) counted.set(known.visitor, 0);
    return [...counted].map(([key, size]) => [JSON.parse(key), size]);
  }

  /** Close all connections of these visits, and forget that they were let in. */
  end(visits) {
    const ended = new Set(visits.map((visit) => JSON.stringify(visit)));
    for (const [key, { visitor }] of this.#remembered) if (ended.has(visitor)) this.#remembered.delete(key);
    const leaving = [...ended].flatMap((key) => [...(this.#open.get(key) ?? [])]);
    for (const [connection, leave] of leaving) {
      leave();
      setTimeout(() => connection.destroy(), FAREWELL).unref();
    }
    return leaving.length;
  }
}

/** The part of the API that is about visits; only somebody with the gateway's token is heard. */
export function visitsApi(visits, token) {
  const told = (answer, status, body = "") =>
    answer.writeHead(status, { "Content-Type": "application/json" }).end(body && JSON.stringify(body));
  const isOurs = ({ headers }) => {
    const [sent, own] = [headers.authorization ?? "", `token ${token}`].map((text) => Buffer.from(text));
    return sent.length === own.length && timingSafeEqual(sent, own);
  };
  const get = async (request, answer) => {
    if (!isOurs(request)) return told(answer, 403);
    if (request.url.endsWith("?looked")) visits.looked();
    return told(answer, 200, visits.all());
  };
  const end = async (request, answer) => {
    if (!isOurs(request)) return told(answer, 403);
    let body = "";
    for await (const part of request.setEncoding("utf8"))
      if ((body += part).length > LONGEST_BODY) return told(answer, 413);
    try {
      return told(answer, 200, { closed: visits.end(JSON.parse(body)) });
    } catch {
      return told(answer, 400);
    }
  };
  return [/^\/api\/visits$/, { get, delete: end }];
}
