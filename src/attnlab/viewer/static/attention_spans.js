// Two tokenizers on one text: tokens are compared by the characters that they stand for.

// Places of the tokens that share a character with a span.
export function overlapping(tokens, span) {
  const shares = (token) => span && token.span && token.span[0] < span[1] && span[0] < token.span[1];
  return new Set(tokens.flatMap((token, at) => (shares(token) ? [at] : [])));
}

// The shortest passages at whose ends tokens of both end, with both losses in nats; none where the texts differ.
export function passages(one, other) {
  const firsts = judged(one), seconds = judged(other);
  if (!firsts.length || textOf(firsts) !== textOf(seconds)) return [];
  const ends = new Set(firsts.map((token) => token.span[1]));
  const shared = [...new Set(seconds.map((token) => token.span[1]))].filter((end) => ends.has(end)).sort((a, b) => a - b);
  let start = 0;
  return shared.map((end) => {
    const within = (tokens) => tokens.filter((token) => token.span[1] > start && token.span[1] <= end);
    const [mine, theirs] = [within(firsts), within(seconds)];
    start = end;
    const [first, second] = [mine, theirs].map((tokens) => tokens.reduce((total, token) => total + token.loss, 0));
    return { text: mine.map((token) => token.text).join(""), one: first, other: second, difference: second - first };
  });
}

const judged = (tokens) => tokens.filter((token) => token.span && token.loss !== null && token.loss !== undefined);
const textOf = (tokens) => tokens.map((token) => token.text).join("").trim().toLowerCase();
