//! Columns of text.

/// Formats rows in columns, each as wide as its widest cell, and the lines that belong below a row.
/// The last cell of a row is not padded.
pub(super) fn columns(rows: &[(Vec<String>, Vec<String>)]) -> String {
    let count = rows.iter().map(|(cells, _)| cells.len()).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|(cells, _)| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for (cells, below) in rows {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
        for line in below {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}
