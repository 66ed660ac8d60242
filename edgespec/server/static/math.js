/* Formulas in Markdown: LaTeX between dollars or \( \) and \[ \] becomes MathML, which browsers draw
   with fonts of their own. Knows no elements. */

/* The closing dollar follows no space and comes before no digit, as in pandoc: prices are no formulas. */
const INLINE = /^(?:\\\((.+?)\\\)|\$\$([^$]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s\\$]|\\.)\$(?!\d))/s;
const BLOCK = /^(?:\$\$([^$]+?)\$\$|\\\[(.+?)\\\])[ \t]*(?:\n|$)/s;
const PARAGRAPH_END = /\n[ \t]*\n/;

function formula(name, level, pattern, begins, isDisplayed) {
  return {
    name,
    level,
    start: source => source.match(begins)?.index,
    tokenizer(source) {
      const found = pattern.exec(source);
      if (!found || PARAGRAPH_END.test(found[0].trimEnd())) return undefined;
      const [raw, ...parts] = found;
      const latex = parts.find(part => part !== undefined);
      return { type: name, raw, latex, isDisplayed: isDisplayed || raw.startsWith("$$") };
    },
    renderer({ raw, latex, isDisplayed: isWide }) {
      const made = mathml(latex, isWide, raw);
      return level === "block" ? `<p class="formula">${made}</p>` : made;
    },
  };
}

/* What is no LaTeX stays as it was written. */
function mathml(latex, displayMode, raw) {
  try {
    return temml.renderToString(latex, { displayMode, throwOnError: true, maxExpand: 1000, maxSize: [20, 20] });
  } catch {
    return raw.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`);
  }
}

export const FORMULAS = [
  formula("formulaBlock", "block", BLOCK, /\$\$|\\\[/, true),
  formula("formula", "inline", INLINE, /\$|\\\(/, false),
];
export const TAGS = ["math", "maction", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo",
  "mover", "mpadded", "mphantom", "mprescripts", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle",
  "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "none", "semantics"];
export const ATTRIBUTES = ["accent", "accentunder", "columnalign", "columnlines", "columnspacing",
  "columnspan", "depth", "display", "displaystyle", "fence", "form", "height", "largeop", "linethickness",
  "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowalign", "rowlines",
  "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width"];
