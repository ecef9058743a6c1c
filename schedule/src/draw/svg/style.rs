//! The style sheet: the colours that a picture uses, for light and dark pages.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use crate::draw::palette::{Kind, Shade, Theme};

/// A colour of boxes: the name of its class is the kind's letter and the number of the shade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(pub(super) Kind, pub(super) Shade);

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `>` is no letter of a class name.
        let letter = match self.0 {
            Kind::Send => 'S',
            kind => kind.letter(),
        };
        write!(f, "{letter}{}", self.1.index())
    }
}

/// What is the same on every page.
const FIXED: &str = "\
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;font-size:11px}
.title{font-size:16px;font-weight:600}
.sub{font-size:12px}
.n{text-anchor:middle}
.e{text-anchor:end}
.small{font-size:9px}
.grid,.axis,.line,.msg{fill:none;stroke-width:1}
.line{stroke-width:1.25}
.dash{stroke-dasharray:3 2}
";

/// Page, text, muted text, empty row, grid, curve, fill of the curve, messages.
const LIGHT: [&str; 8] = [
    "#ffffff", "#1b2027", "#626b78", "#f0f2f5", "#dde1e7", "#7b8594", "#dfe4eb", "#3d4654",
];
const DARK: [&str; 8] = [
    "#15181e", "#e7eaee", "#98a2b0", "#20252d", "#333b46", "#8a95a5", "#2c333e", "#c9d0da",
];

/// Writes the style element.
pub(super) fn write_style(out: &mut String, classes: &BTreeSet<Class>) -> fmt::Result {
    write!(out, "<style>\n{FIXED}")?;
    write_theme(out, classes, Theme::Light)?;
    out.push_str("@media (prefers-color-scheme:dark){\n");
    write_theme(out, classes, Theme::Dark)?;
    out.push_str("}\n</style>\n");
    Ok(())
}

fn write_theme(out: &mut String, classes: &BTreeSet<Class>, theme: Theme) -> fmt::Result {
    let [page, text, muted, track, grid, line, area, message] = match theme {
        Theme::Light => LIGHT,
        Theme::Dark => DARK,
    };
    writeln!(
        out,
        ".page{{fill:{page}}}\ntext{{fill:{text}}}\n.muted{{fill:{muted}}}\n.track{{fill:{track}}}\n\
         .grid,.axis{{stroke:{grid}}}\n.line{{stroke:{line}}}\n.area{{fill:{area}}}\n\
         .msg{{stroke:{message}}}"
    )?;
    for class in classes {
        let fill = class.0.fill(theme, class.1);
        writeln!(
            out,
            ".{class}{{fill:{fill}}}.{class} text{{fill:{}}}",
            fill.ink()
        )?;
    }
    Ok(())
}
