//! Tables: each column is as wide as its widest cell. If the terminal is too narrow, the least important columns are
//! left out.

use super::page::{Look, Page, Style};

pub type Cell = (Style, String);

/// Rows of cells, without more columns than fit. `dropped` are those that can be left out, in this order.
pub fn page(rows: &[Vec<Cell>], dropped: &[usize], look: Look) -> Page {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|(_, cell)| cell.chars().count()).max().unwrap_or(0)
    };
    let mut kept: Vec<usize> = (0..columns).collect();
    let mut dropped = dropped.iter();
    let total = |kept: &[usize]| kept.iter().map(|column| width(*column) + 2).sum::<usize>().saturating_sub(2);
    while look.width.is_some_and(|room| total(&kept) > room)
        && let Some(column) = dropped.next()
    {
        kept.retain(|other| other != column);
    }
    let mut page = Page::new();
    for row in rows {
        let cells = kept.iter().filter_map(|column| Some((*column, row.get(*column)?)));
        let padded: Vec<Cell> =
            cells.map(|(at, (style, cell))| (*style, format!("{cell:w$}  ", w = width(at)))).collect();
        page.row(&padded);
    }
    page
}

/// The same without styles, for text that is printed as it is.
pub fn text(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Cell>> =
        rows.iter().map(|row| row.iter().map(|cell| (Style::Plain, cell.clone())).collect()).collect();
    page(&rows, &[], Look::default()).render(Look::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec![String::from("a"), String::from("bbb")], vec![String::from("ccc"), String::from("d")]];
        assert_eq!(text(&rows), "a    bbb\nccc  d\n");
    }

    #[test]
    fn a_narrow_terminal_gets_the_columns_that_matter() {
        let row: Vec<Cell> =
            ["etcd-1", "less needed", "healthy", "least needed"].map(|c| (Style::Plain, c.into())).into();
        let at =
            |width| page(std::slice::from_ref(&row), &[3, 1], Look::default()).render(Look { width, colour: false });
        assert_eq!(at(None), "etcd-1  less needed  healthy  least needed\n");
        let narrow = |width| {
            let look = Look { width: Some(width), colour: false };
            page(std::slice::from_ref(&row), &[3, 1], look).render(look)
        };
        assert_eq!(narrow(30), "etcd-1  less needed  healthy\n");
        assert_eq!(narrow(20), "etcd-1  healthy\n");
    }
}
