//! Tables for terminals: as wide as what is in them or, where that is too wide, as the terminal.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use unicode_width::UnicodeWidthStr;

/// What is between two columns.
const GAP: usize = 2;
/// A column of names is made no narrower than this for the sake of others.
const NARROW: usize = 12;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// On the left; goes on in the next line where it is too long.
    Words,
    /// On the right; stays on its line.
    Figure,
}

impl Column {
    /// A column of names, on the left.
    pub(crate) fn words(title: &'static str) -> Self {
        Self { title, content: Content::Words }
    }

    /// A column of numbers, on the right.
    pub(crate) fn figures(title: &'static str) -> Self {
        Self { title, content: Content::Figure }
    }
}

/// A table, the first column of which says what a row is about.
#[derive(Clone, Debug)]
pub(crate) struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, no line of it wider than this. Where that is too little for all columns, names go on in the
    /// next line, and columns that still find no place follow in a table of their own below, beside the first column.
    /// O(cells).
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let natural: Vec<usize> = (0..self.columns.len()).map(|column| self.natural(column)).collect();
        let all: usize = natural.iter().map(|width| width + GAP).sum();
        let Some(width) = width.filter(|&width| all > width + GAP) else {
            return self.part(&(0..self.columns.len()).collect::<Vec<_>>(), None);
        };
        let parts = self.parts(&natural, width);
        let texts: Vec<String> = parts.iter().map(|columns| self.part(columns, Some(width))).collect();
        texts.join("\n")
    }

    /// The width of a column's widest cell.
    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain([self.columns[column].title]).map(UnicodeWidthStr::width).max().unwrap_or(0)
    }

    /// Divides the columns into tables of this width, each of which begins with the first column.
    fn parts(&self, natural: &[usize], width: usize) -> Vec<Vec<usize>> {
        let least = |column: usize| match self.columns[column].content {
            Content::Words => natural[column].min(NARROW),
            Content::Figure => natural[column],
        };
        let mut parts = vec![vec![0]];
        let mut taken = least(0);
        for column in 1..self.columns.len() {
            let part =
                parts.last_mut().filter(|part| part.len() == 1 || taken + GAP + least(column) <= width);
            match part {
                Some(part) => part.push(column),
                None => {
                    parts.push(vec![0, column]);
                    taken = least(0);
                }
            }
            taken += GAP + least(column);
        }
        parts
    }

    /// Some of the columns.
    fn part(&self, columns: &[usize], width: Option<usize>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(columns.iter().map(|&column| self.columns[column].title));
        for row in &self.rows {
            table.add_row(columns.iter().map(|&column| row.get(column).map_or("", String::as_str)));
        }
        for (column, &number) in table.column_iter_mut().zip(columns) {
            if self.columns[number].content == Content::Figure {
                column.set_cell_alignment(CellAlignment::Right);
                // A terminal in which not even one column of figures finds a place breaks them.
                if width.is_some_and(|width| NARROW + GAP + self.natural(number) <= width) {
                    column.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
        if let Some(width) = width {
            // Every cell is padded by one space on both sides, the first and the last one needlessly.
            table.set_width(u16::try_from(width + GAP).unwrap_or(u16::MAX));
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        let lines = table.lines();
        lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(&line).trim_end())).collect()
    }
}

/// The most characters of a name in a table.
#[cfg(feature = "run")]
const LONGEST: usize = 48;

/// A name as it appears in a table: made harmless, and the middle of a long one left out.
#[cfg(feature = "run")]
pub(crate) fn clipped(name: &str) -> String {
    let name = crate::escape::escaped(name);
    let count = name.chars().count();
    if count <= LONGEST {
        return name;
    }
    let half = (LONGEST - 3) / 2;
    let head: String = name.chars().take(half).collect();
    let tail: String = name.chars().skip(count - half).collect();
    format!("{head}...{tail}")
}

/// The lines of a text, those that are wider than this broken: between words where there are any, and indented
/// as what is after a label (`latency    3 ms`). O(text).
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if line.width() <= width {
            out += line;
        } else {
            wrap_line(&mut out, line, width.max(1));
        }
        out += end;
    }
    out
}

fn wrap_line(out: &mut String, line: &str, width: usize) {
    let indent = indent(line).min(width / 3);
    let mut column = 0;
    // Spaces that are written only where a word follows on the same line.
    let mut spaces = 0;
    for (number, word) in line.split(' ').enumerate() {
        spaces += usize::from(number > 0);
        if word.is_empty() {
            continue;
        }
        if column > indent && column + spaces + word.width() > width {
            *out += "\n";
            (column, spaces) = (0, indent);
        }
        *out += &" ".repeat(spaces);
        column += spaces;
        spaces = 0;
        // A word that is wider than a line is broken wherever the line ends.
        for letter in word.chars() {
            let wide = unicode_width::UnicodeWidthChar::width(letter).unwrap_or(0);
            if column + wide > width && column > indent {
                *out += "\n";
                *out += &" ".repeat(indent);
                column = indent;
            }
            out.push(letter);
            column += wide;
        }
    }
}

/// Where the lines that follow begin: behind a label that two spaces or more end, else two further in.
fn indent(line: &str) -> usize {
    let begin = line.len() - line.trim_start().len();
    let label = line[begin..].find("  ").map(|end| {
        let rest = &line[begin + end..];
        line[..begin + end].width() + (rest.len() - rest.trim_start().len())
    });
    label.filter(|&label| label <= 16).unwrap_or(begin + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&[
            Column::words("device"),
            Column::words("target"),
            Column::figures("peak"),
            Column::figures("arena"),
        ]);
        table.row(["cpu0", "model", "1.25 MB", "2.5 MB"].map(str::to_owned));
        table.row([&*"a long name of a device ".repeat(4), "x", "100 B", "7 B"].map(str::to_owned));
        table
    }

    #[test]
    fn a_table_is_no_wider_than_its_terminal_and_keeps_its_figures_whole() {
        assert_eq!(table().text(None).lines().count(), 3);
        for width in 30..140 {
            let text = table().text(Some(width));
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            for figure in ["1.25 MB", "2.5 MB", "100 B"] {
                assert!(text.lines().any(|line| line.contains(figure)), "{width}:\n{text}");
            }
        }
        // As good as no room: still no panic, and all the letters.
        for width in 0..30 {
            assert!(table().text(Some(width)).contains('m'));
        }
    }

    #[test]
    fn columns_that_find_no_place_follow_below_beside_the_first() {
        let text = table().text(Some(26));
        let tables: Vec<&str> = text.split("\n\n").collect();
        assert!(tables.len() > 1, "{text}");
        for table in tables {
            assert!(table.starts_with("device") && table.contains("\ncpu0"), "{text}");
        }
        for title in ["target", "peak", "arena"] {
            assert_eq!(text.matches(title).count(), 1, "{text}");
        }
    }

    #[test]
    fn lines_are_broken_between_words_and_indented_as_they_began() {
        let text = "latency    three milliseconds for one step\n  a: b\n";
        assert_eq!(wrapped(text, 36), "latency    three milliseconds for\n           one step\n  a: b\n");
        assert_eq!(wrapped("nothing to do\n", 80), "nothing to do\n");
        let long = format!("node {} is here", "x".repeat(50));
        for width in 1..70 {
            let text = wrapped(&long, width);
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            assert_eq!(text.matches('x').count(), 50);
        }
        let wide = wrapped(&"\u{5c42}".repeat(30), 20);
        assert!(wide.lines().all(|line| line.width() <= 20), "{wide}");
    }
}
