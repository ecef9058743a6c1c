//! Colours: one per kind of action, in four shades for the stages of one rank.

use crate::action::Compute;

/// What a drawn action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Forward,
    Backward,
    InputGradient,
    WeightGradient,
    Update,
    Reduce,
    Send,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
        Self::Update,
        Self::Reduce,
        Self::Send,
    ];

    /// The letter of the text form, or what stands for it.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputGradient => 'I',
            Self::WeightGradient => 'W',
            Self::Update => 'U',
            Self::Reduce => 'R',
            Self::Send => '>',
        }
    }

    /// The word for legends and categories.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::InputGradient => "input gradient",
            Self::WeightGradient => "weight gradient",
            Self::Update => "update",
            Self::Reduce => "reduce",
            Self::Send => "send",
        }
    }

    /// The place of this kind in [`Kind::ALL`].
    pub(super) const fn slot(self) -> usize {
        self as usize
    }

    /// The nearest of the colours that Chrome's trace viewer knows by name.
    pub(super) const fn trace_color(self) -> &'static str {
        match self {
            Self::Forward => "rail_response",
            Self::Backward => "rail_load",
            Self::InputGradient => "background_memory_dump",
            Self::WeightGradient => "rail_idle",
            Self::Update => "detailed_memory_dump",
            Self::Reduce => "rail_animation",
            Self::Send => "generic_work",
        }
    }

    /// The full colour on a light and on a dark background.
    const fn base(self, theme: Theme) -> Rgb {
        let (light, dark) = match self {
            Self::Forward => (0x002f_6bd8, 0x005c_93f2),
            Self::Backward => (0x002b_843c, 0x0058_b862),
            Self::InputGradient => (0x000c_8294, 0x0035_b6c6),
            Self::WeightGradient => (0x00e0_7b16, 0x00f0_9a40),
            Self::Update => (0x0085_4fc4, 0x00b0_87ea),
            Self::Reduce => (0x00c8_3f78, 0x00e8_78a6),
            Self::Send => (0x0076_7f8c, 0x0093_9dab),
        };
        match theme {
            Theme::Light => Rgb::from_hex(light),
            Theme::Dark => Rgb::from_hex(dark),
        }
    }

    /// The fill of a box.
    pub(super) fn fill(self, theme: Theme, shade: Shade) -> Rgb {
        self.base(theme).toward(theme.background(), shade.fade())
    }

    /// The background of a cell, of the 256 colours that terminals share.
    pub(super) const fn cell(self, shade: Shade) -> u8 {
        let shades: [u8; SHADES] = match self {
            Self::Forward => [26, 111, 68, 153],
            Self::Backward => [28, 114, 71, 157],
            Self::InputGradient => [30, 80, 37, 159],
            Self::WeightGradient => [166, 215, 172, 223],
            Self::Update => [91, 176, 133, 182],
            Self::Reduce => [161, 211, 168, 218],
            Self::Send => [240, 248, 244, 252],
        };
        shades[shade.0]
    }
}

impl From<Compute> for Kind {
    fn from(compute: Compute) -> Self {
        match compute {
            Compute::Forward => Self::Forward,
            Compute::Backward => Self::Backward,
            Compute::InputGradient => Self::InputGradient,
            Compute::WeightGradient => Self::WeightGradient,
        }
    }
}

/// The number of shades that are told apart.
pub(super) const SHADES: usize = 4;

/// The shade of a rank's stage: full for its lowest stage, and never the same for two that follow
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shade(usize);

impl Shade {
    /// The shade of a rank's n-th stage; the fifth looks like the first.
    pub(super) const fn of_chunk(chunk: usize) -> Self {
        Self(chunk % SHADES)
    }

    /// Its number, below [`SHADES`].
    pub(super) const fn index(self) -> usize {
        self.0
    }

    /// How far the colour is mixed with the background.
    const fn fade(self) -> f64 {
        [0.0, 0.55, 0.28, 0.75][self.0]
    }
}

/// The background that a picture stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Theme {
    Light,
    Dark,
}

impl Theme {
    /// The page.
    pub(super) const fn background(self) -> Rgb {
        match self {
            Self::Light => Rgb::from_hex(0x00ff_ffff),
            Self::Dark => Rgb::from_hex(0x0015_181e),
        }
    }
}

/// A colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rgb([u8; 3]);

impl Rgb {
    const BLACK: Self = Self::from_hex(0);
    const WHITE: Self = Self::from_hex(0x00ff_ffff);

    const fn from_hex(hex: u32) -> Self {
        let [_, red, green, blue] = hex.to_be_bytes();
        Self([red, green, blue])
    }

    /// The colour of an entry of the 6 x 6 x 6 cube or the grey ramp of a 256-colour terminal.
    pub(super) fn of_terminal(index: u8) -> Self {
        const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
        if index >= 232 {
            return Self([8 + 10 * (index - 232); 3]);
        }
        let cube = usize::from(index.saturating_sub(16));
        Self([cube / 36 % 6, cube / 6 % 6, cube % 6].map(|level| LEVELS[level]))
    }

    /// A mixture: `share` of the other colour.
    fn toward(self, other: Self, share: f64) -> Self {
        let mix = |at: usize| {
            let (from, to) = (f64::from(self.0[at]), f64::from(other.0[at]));
            (from + (to - from) * share).round() as u8
        };
        Self([mix(0), mix(1), mix(2)])
    }

    /// Relative luminance (WCAG 2.2, section "relative luminance").
    fn luminance(self) -> f64 {
        let linear = |channel: u8| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        let [red, green, blue] = self.0.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    /// Contrast ratio, from 1 to 21 (WCAG 2.2, section "contrast ratio").
    fn contrast(self, other: Self) -> f64 {
        let (a, b) = (self.luminance(), other.luminance());
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Black or white, whichever is read better on this colour.
    pub(super) fn ink(self) -> Self {
        if self.contrast(Self::WHITE) >= self.contrast(Self::BLACK) {
            Self::WHITE
        } else {
            Self::BLACK
        }
    }

    /// Whether the ink on this colour is white.
    pub(super) fn wants_white(self) -> bool {
        self.ink() == Self::WHITE
    }
}

impl std::fmt::Display for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG asks for a ratio of 4.5 between text and its background.
    #[test]
    fn every_number_is_readable_on_its_box() {
        for (kind, chunk) in Kind::ALL
            .into_iter()
            .flat_map(|k| (0..SHADES).map(move |c| (k, c)))
        {
            let shade = Shade::of_chunk(chunk);
            let boxes = [Theme::Light, Theme::Dark].map(|theme| kind.fill(theme, shade));
            let cell = Rgb::of_terminal(kind.cell(shade));
            for fill in boxes.into_iter().chain([cell]) {
                let ratio = fill.contrast(fill.ink());
                assert!(ratio >= 4.5, "{kind:?} {chunk} {fill}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn shades_and_kinds_differ() {
        for theme in [Theme::Light, Theme::Dark] {
            let mut fills: Vec<String> = Kind::ALL
                .into_iter()
                .flat_map(|kind| (0..SHADES).map(move |c| kind.fill(theme, Shade::of_chunk(c))))
                .map(|fill| fill.to_string())
                .collect();
            fills.sort();
            fills.dedup();
            assert_eq!(fills.len(), Kind::ALL.len() * SHADES);
        }
        assert_eq!(Shade::of_chunk(5), Shade::of_chunk(1));
    }

    #[test]
    fn slots_follow_the_list_of_kinds() {
        for (slot, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.slot(), slot);
        }
    }

    #[test]
    fn terminal_colours_are_those_of_the_cube() {
        for (index, expected) in [
            (16, "#000000"),
            (26, "#005fd7"),
            (231, "#ffffff"),
            (240, "#585858"),
        ] {
            assert_eq!(Rgb::of_terminal(index).to_string(), expected);
        }
    }
}
