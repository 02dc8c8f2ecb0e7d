// Server-sent events, asked for anew where they end; a page that nobody sees asks for none, and for everything when it is
// seen again.

const RETRY_MS = 5000;

// `take` gets what every event holds, `lost` whether the server is out of reach. Returns what asks for everything anew, and
// what ends it.
export function follow(address, take, lost = () => {}) {
  let source = null, retry;
  function close() {
    clearTimeout(retry);
    source?.close();
  }
  function open() {
    close();
    if (document.hidden) return;
    source = new EventSource(address);
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onopen = () => lost(false);
    source.onerror = () => {
      lost(true);
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY_MS); // refused, which a browser does not retry
    };
  }
  document.addEventListener("visibilitychange", open);
  open();
  return {
    anew: open,
    end() {
      document.removeEventListener("visibilitychange", open);
      close();
    },
  };
}
