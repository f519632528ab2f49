/* SPDX-License-Identifier: Apache-2.0 */
// How the search orders pages. Sphinx gives 5 points for a word in the text, 15 for one in a heading, and more for a
// title. What this project decided and measured comes after all that users need; symptoms come before other headings.
const PROJECT = /^(docs\/decisions|experiments|bench|CHANGELOG|CONTRIBUTING)/;

var Scorer = {
  score: ([page, , , , score]) => score + (PROJECT.test(page) ? -100 : page === "docs/troubleshooting" ? 5 : 0),
  // As without this file.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
