//! Colours: one per kind of action, in four shades for the stages of one rank.

/// The letter of each kind in the text form, its word for legends, its colour, and the name of a similar colour in Chrome's
/// trace viewer. Black text is readable on all colours, and they are visible on light and on dark pages.
const KINDS: [(char, &str, u32, &str); Kind::COUNT] = [
    ('F', "forward", 0x5c93f2, "rail_response"),
    ('B', "backward", 0x58b862, "rail_load"),
    ('I', "input gradient", 0x35b6c6, "background_memory_dump"),
    ('W', "weight gradient", 0xf09a40, "rail_idle"),
    ('U', "update", 0xb087ea, "detailed_memory_dump"),
    ('R', "reduce", 0xe878a6, "rail_animation"),
    ('>', "send", 0x939dab, "generic_work"),
];

/// The percentage of white in the colours of a rank's first to fourth stage. Consecutive stages differ most.
pub(super) const SHADES: [u32; 4] = [0, 56, 30, 82];

/// The kind of a drawn action.
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
    /// The kinds of programs, by [`Compute::slot`](crate::Compute::slot).
    pub(super) const PROGRAMS: [Self; 4] = [
        Self::Forward,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
    ];

    /// The number of kinds.
    pub(super) const COUNT: usize = Self::Send as usize + 1;

    pub(super) const fn letter(self) -> char {
        KINDS[self as usize].0
    }

    pub(super) const fn word(self) -> &'static str {
        KINDS[self as usize].1
    }

    pub(super) const fn trace_color(self) -> &'static str {
        KINDS[self as usize].3
    }

    /// Returns the colour of a rank's stage, by the number of the rank's lower stages.
    fn rgb(self, chunk: usize) -> [u8; 3] {
        let [_, rgb @ ..] = KINDS[self as usize].2.to_be_bytes();
        let share = SHADES[chunk % SHADES.len()];
        rgb.map(|channel| 255 - (u32::from(255 - channel) * (100 - share) / 100) as u8)
    }

    /// Returns the colour for SVG.
    pub(super) fn fill(self, chunk: usize) -> String {
        let [red, green, blue] = self.rgb(chunk);
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    /// Returns the nearest colour of the 6 x 6 x 6 cube that terminals of 256 colours share. The levels of the
    /// cube are 0, 95, 135, 175, 215 and 255.
    pub(super) fn terminal_color(self, chunk: usize) -> u8 {
        let [red, green, blue] = self.rgb(chunk).map(|level| level.saturating_sub(35) / 40);
        16 + 36 * red + 6 * green + blue
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [Kind; Kind::COUNT] = [
        Kind::Forward,
        Kind::Backward,
        Kind::InputGradient,
        Kind::WeightGradient,
        Kind::Update,
        Kind::Reduce,
        Kind::Send,
    ];

    /// All kinds in all shades.
    fn all() -> impl Iterator<Item = (Kind, usize)> {
        let shades = 0..SHADES.len();
        ALL.into_iter()
            .flat_map(move |kind| shades.clone().map(move |chunk| (kind, chunk)))
    }

    /// Contrast of black text on a colour: WCAG 2.2, "relative luminance" and "contrast ratio".
    fn contrast_with_black(rgb: [u8; 3]) -> f64 {
        let [red, green, blue] = rgb.map(|channel| {
            let value = f64::from(channel) / 255.0;
            match value <= 0.040_45 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        });
        (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) / 0.05
    }

    /// WCAG requires a ratio of 4.5 between text and its background.
    #[test]
    fn every_number_is_readable_on_its_box() {
        const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
        for (kind, chunk) in all() {
            let cell = usize::from(kind.terminal_color(chunk) - 16);
            let cell = [cell / 36, cell / 6 % 6, cell % 6].map(|level| LEVELS[level]);
            for rgb in [kind.rgb(chunk), cell] {
                let ratio = contrast_with_black(rgb);
                assert!(ratio >= 4.5, "{kind:?} {chunk} {rgb:?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn shades_and_kinds_differ() {
        let fills: BTreeSet<String> = all().map(|(kind, chunk)| kind.fill(chunk)).collect();
        assert_eq!(fills.len(), ALL.len() * SHADES.len());
        assert_eq!(Kind::Send.fill(5), Kind::Send.fill(1));
        for kind in ALL {
            let shades = (0..SHADES.len()).map(|chunk| kind.terminal_color(chunk));
            assert_eq!(shades.collect::<BTreeSet<u8>>().len(), SHADES.len());
        }
    }
}
