"""Colours and measures of the report's page, in light and in dark. No markup."""

STYLE = """
:root{color-scheme:light dark;--bg:#fcfcfb;--card:#ffffff;--ink:#1b1c1e;--soft:#5d6168;
--rule:#dfe1e4;--grid:#eceef0;--ours:#2f6fd0;--best:#0b3f94;--theirs:#9aa1ab;--draft:#178a5f;
--stall:#e09020;--compute:#2f6fd0;--mixed:#8d7bc4;--other:#a9aeb6;--limit:#c2342b}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1c1f23;--ink:#eceef1;--soft:#a2a8b1;
--rule:#343941;--grid:#2a2e34;--ours:#5b97ee;--best:#9cc3ff;--theirs:#737b87;--draft:#3fb98a;
--stall:#e9a84a;--compute:#5b97ee;--mixed:#a796dc;--other:#6b727c;--limit:#f0746b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:0 0 4px}
p{margin:0 0 12px;color:var(--soft)}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:18px 20px;margin-top:18px}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin-top:14px}
.tile{flex:1 1 180px;background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:12px 16px}
.tile b{display:block;font-size:24px;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:5px 8px;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600}
.n{text-align:right}
.notes{margin:12px 0 0;padding-left:18px;color:var(--soft);font-size:13px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:12px 0 0;font-size:13.5px}
dt{font-weight:600}
dd{margin:0;color:var(--soft);overflow-wrap:anywhere}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:0 0 10px;
font-size:13px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:12px;height:12px}
svg.wide{display:block;width:100%;height:auto}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:14px}
svg.panel{width:100%;height:auto}
svg text{font-size:13px;fill:var(--ink);dominant-baseline:middle;paint-order:stroke;
stroke:var(--card);stroke-width:3px;stroke-linejoin:round;
font-variant-numeric:tabular-nums}
svg .small{font-size:11px;fill:var(--soft)}
svg .name{font-weight:600}
svg .value{fill:var(--ink)}
svg .end{text-anchor:end}
svg .middle{text-anchor:middle}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--rule);fill:none}
.whisker{stroke:var(--ink);fill:none;stroke-width:1.5;opacity:.75}
.limit{stroke:var(--limit);fill:none;stroke-width:1.5;stroke-dasharray:5 3}
.mark{stroke:var(--soft);fill:none;stroke-dasharray:1 3}
.line{stroke:var(--ours);fill:none;stroke-width:1.8;stroke-linejoin:round}
.area{fill:var(--ours);opacity:.13}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.ours-line{stroke:var(--ours)}.theirs-line{stroke:var(--theirs)}.draft-line{stroke:var(--draft)}
.ours{fill:var(--ours)}.best{fill:var(--best)}.theirs{fill:var(--theirs)}
.draft{fill:var(--draft)}.stall{fill:var(--stall)}.compute{fill:var(--compute)}
.mixed{fill:var(--mixed)}.other{fill:var(--other)}
"""
