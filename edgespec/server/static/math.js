/* Formulas in Markdown: LaTeX between dollars or \( \) and \[ \], or an environment of its own, becomes MathML,
   which browsers draw with fonts of their own. */

/* The closing dollar follows no space and comes before no digit, as in pandoc: prices are no formulas. */
const INLINE = /^(?:\\\((.+?)\\\)|\$\$([^$]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s\\$]|\\.)\$(?!\d))/s;
const BLOCK = /^(?:\$\$([^$]+?)\$\$|\\\[(.+?)\\\]|(\\begin\{([a-z]+\*?)\}.+?\\end\{\4\}))[ \t]*(?:\n|$)/s;
const PARAGRAPH_END = /\n[ \t]*\n/;
/* What formulas may set of their looks: neither places nor addresses. */
const LOOKS = /^(?:padding|border|width|margin-left|margin-right|color|background-color|math-depth|text-align)/;

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

/* What is no LaTeX stays as it was written. Looks come as an attribute that the content policy knows nothing of. */
function mathml(latex, displayMode, raw) {
  try {
    return temml.renderToString(latex, { displayMode, throwOnError: true, maxExpand: 1000, maxSize: [20, 20] })
      .replace(/ style="/g, " data-looks=\"");
  } catch {
    return raw.replace(/[&<>]/g, sign => `&#${sign.charCodeAt(0)};`);
  }
}

/* Gives sanitised formulas their looks. */
export function lookRight(parent) {
  for (const one of parent.querySelectorAll("[data-looks]")) {
    for (const rule of one.getAttribute("data-looks").split(";")) {
      const [name, value = ""] = rule.split(":");
      if (LOOKS.test(name) && !value.includes("(")) one.style.setProperty(name, value);
    }
  }
}

export const FORMULAS = [
  formula("formulaBlock", "block", BLOCK, /\$\$|\\\[|\n\\begin\{/, true),
  formula("formula", "inline", INLINE, /\$|\\\(/, false),
];
export const TAGS = ("math maction menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms "
  + "mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none semantics").split(" ");
export const ATTRIBUTES = ("accent accentunder columnalign columnlines columnspacing columnspan data-looks depth display displaystyle "
  + "fence form height largeop linethickness lspace mathvariant maxsize minsize movablelimits notation rowalign rowlines rowspacing "
  + "rspace scriptlevel separator stretchy symmetric voffset width").split(" ");
