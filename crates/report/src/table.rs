//! Text in columns and in lines.

/// Rows of cells, the first column to the left and the others to the right, `indent` spaces before and two between.
#[must_use]
pub fn columns(indent: usize, rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            if column == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// No line of a report is longer, but for those that cannot be broken.
pub const WIDTH: usize = 110;
/// The same rows in at most `width` characters: as columns if they fit, else with rows and columns exchanged, else one
/// value below the other. The first row is the head, the first column the names.
#[must_use]
pub fn fitted(rows: &[Vec<String>], width: usize) -> String {
    let fits = |text: &str| text.lines().all(|line| line.chars().count() <= width);
    let straight = columns(0, rows);
    if fits(&straight) {
        return straight;
    }
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: usize, column: usize| rows[row].get(column).cloned().unwrap_or_default();
    let turned: Vec<Vec<String>> = (0..count)
        .map(|column| {
            let cells = (0..rows.len()).map(|row| cell(row, column).trim().to_owned());
            // Names below the head are set in.
            cells.enumerate().map(|(i, text)| if i == 0 && column > 0 { format!("  {text}") } else { text }).collect()
        })
        .collect();
    let turned = columns(0, &turned);
    if fits(&turned) {
        return turned;
    }
    let mut text = cell(0, 0) + "\n";
    for (row, cells) in rows.iter().enumerate().skip(1) {
        text += &format!("  {}\n", cell(row, 0).trim());
        let values: Vec<Vec<String>> =
            (1..cells.len()).map(|column| vec![cell(0, column), cell(row, column)]).collect();
        text += &columns(4, &values);
    }
    text
}

/// Lines of at most `width`, broken between words.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns the items in order, each once.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    items.into_iter().fold(Vec::new(), |mut seen, item| {
        if !seen.contains(&item) {
            seen.push(item);
        }
        seen
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_column_is_to_the_left() {
        let rows = [["", "p50", "max"], ["service", "1.00ms", "2s"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(2, &rows), "              p50  max\n  service  1.00ms   2s\n");
    }

    #[test]
    fn a_table_is_turned_where_it_does_not_fit_and_taken_apart_where_that_does_not() {
        let rows = [["Latency", "p50", "p99", "max"], ["  service", "1.00ms", "2.00ms", "3.00ms"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        assert_eq!(fitted(&rows, 80), columns(0, &rows));
        assert_eq!(fitted(&rows, 20), "Latency  service\n  p50     1.00ms\n  p99     2.00ms\n  max     3.00ms\n");
        assert_eq!(fitted(&rows, 14), "Latency\n  service\n    p50  1.00ms\n    p99  2.00ms\n    max  3.00ms\n");
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 3), ["unbreakable"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
