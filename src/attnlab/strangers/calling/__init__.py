"""How a patient may be called, as far as its signature tells: what its arguments are given, and in which layout."""
